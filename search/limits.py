"""Judging a kernel before and while it runs: hopeless resources, and how long a trial may take."""

from __future__ import annotations

from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.space.gpu import Gpu

SPILL_LIMIT = 512
"""Spilled bytes a thread (stores and loads) above which a kernel is not tried: its inner loop lives in local memory."""
FIRST_LIMIT = 180.0
"""Seconds for a trial while none has succeeded: the worker starts, a compiler may build its own libraries first."""
LIMIT_FLOOR = 30.0
"""Seconds a trial always has: a worker replaced after a crash must start anew."""
LIMIT_FACTOR = 10.0
"""Times the quickest success so far that a trial may take beyond the floor."""


def hopeless(kernel: CompiledKernel, gpu: Gpu) -> str | None:
    """Why a compiled kernel is not worth any GPU time, as a sentence; None where it is.

    Registers are granted to a warp in units of 256 (8 a thread), shared memory to a block; limits are those of ``gpu``.
    """
    resources = kernel.resources
    if resources is None:
        return None
    if resources.spill_bytes > SPILL_LIMIT:
        return f"It spills {resources.spill_bytes} bytes a thread, more than {SPILL_LIMIT}."
    threads = -(-kernel.recipe.threads // 32) * 32
    registers = -(-resources.registers // 8) * 8 * threads
    if registers > gpu.registers_per_sm:
        return (
            f"A block of {threads} threads with {resources.registers} registers each needs {registers}, "
            f"but an SM of {gpu.short} has {gpu.registers_per_sm}."
        )
    shared = resources.shared_bytes + kernel.recipe.dynamic_shared
    if shared > gpu.shared_per_block:
        return f"A block needs {shared} bytes of shared memory, but on {gpu.short} it may have {gpu.shared_per_block}."
    return None


class TimeLimit:
    """How many seconds the next trial may take: generous at first, then a multiple of the quickest success."""

    def __init__(self) -> None:
        self._quickest: float | None = None

    def succeeded(self, seconds: float) -> None:
        """A trial has come back correct after ``seconds`` on the device."""
        self._quickest = seconds if self._quickest is None else min(self._quickest, seconds)

    @property
    def seconds(self) -> float:
        """The limit for the next trial."""
        if self._quickest is None:
            return FIRST_LIMIT
        return LIMIT_FLOOR + LIMIT_FACTOR * self._quickest
