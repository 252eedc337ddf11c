"""Judging a kernel before and while it runs: hopeless resources, and how long a trial may take."""

from __future__ import annotations

from collections.abc import Mapping

from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.device.base import Limits
from gemmtune.space.gpu import Gpu

SPILL_LIMIT = 512
"""Spilled bytes a thread (stores and loads) above which a kernel is not tried: its inner loop lives in local memory."""
FLOOR = Limits(start=60.0, load=15.0, verify=5.0, measure=5.0)
"""What every stage has on a GPU: a fresh worker draws its inputs and loads its libraries anew; a kernel that never ends
costs no more than this."""
ESTIMATE_FLOOR = Limits(start=180.0, load=60.0, verify=120.0, measure=60.0)
"""The same where times are estimates: a host compiler runs, on a machine that may be busy with others; a kernel that
never ends is found by the emulator itself."""
LIMIT_FACTOR = 10.0
"""Times the quickest success of a stage that it may take beyond the floor."""


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
    """How long the stages of the next trial may take: generous at first, then a multiple of the quickest success.

    Args:
        estimates: whether the device's times are estimates.
    """

    def __init__(self, *, estimates: bool = False) -> None:
        self._first, self._floor = (ESTIMATE_FLOOR, ESTIMATE_FLOOR) if estimates else (Limits(), FLOOR)
        self._quickest: dict[str, float] = {}
        self._succeeded = False

    def succeeded(self, seconds: Mapping[str, float]) -> None:
        """A trial has come back correct after so many seconds in each stage."""
        self._succeeded = True
        for stage, spent in seconds.items():
            self._quickest[stage] = min(spent, self._quickest.get(stage, spent))

    @property
    def limits(self) -> Limits:
        """The limits of the next trial."""
        if not self._succeeded:
            return self._first
        floor, quickest = self._floor, self._quickest
        return Limits(
            floor.start,
            floor.load + LIMIT_FACTOR * quickest.get("load", 0.0),
            floor.verify + LIMIT_FACTOR * quickest.get("verify", 0.0),
            floor.measure + LIMIT_FACTOR * quickest.get("measure", 0.0),
        )
