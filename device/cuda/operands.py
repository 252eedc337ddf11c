"""Device buffers of one problem: a guarded set that is verified, and copies of it that timing rotates through."""

from __future__ import annotations

from typing import Any

from gemmtune.device.cuda.helpers import StatsBuffer, fill_normal
from gemmtune.device.toolchain import require_cupy
from gemmtune.device.verify import POISON
from gemmtune.space.problem import Problem, Tensor

GUARD = 2**20
"""Bytes of guard zone on each side of a guarded buffer: a few rows of tiles of any usual kernel."""
_ALIGN = 512


class GuardedMemory:
    """``nbytes`` of device memory between two guard zones, all of it poisoned.

    Inputs lie in it too: what a kernel reads outside them is NaN, and shows in the result.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._padded = -(-nbytes // _ALIGN) * _ALIGN
        self._memory = require_cupy().cuda.alloc(self._padded + 2 * GUARD)
        self.address = int(self._memory.ptr) + GUARD
        self.poison()

    def poison(self) -> None:
        """Poison all of it, guard zones too: what an earlier kernel did to them is not held against the next one."""
        poison(int(self._memory.ptr), self._padded + 2 * GUARD)

    def count_damage(self, stats: StatsBuffer) -> None:
        """Add the bytes of the guard zones that changed."""
        stats.count_changed(self.address - GUARD, GUARD, POISON)
        stats.count_changed(self.address + self.nbytes, self._padded - self.nbytes + GUARD, POISON)


def poison(address: int, nbytes: int) -> None:
    """Fill with the poison, on CuPy's current stream."""
    cupy = require_cupy()
    cupy.cuda.runtime.memsetAsync(address, POISON, nbytes, cupy.cuda.get_current_stream().ptr)


class GuardedScratch:
    """Workspace and counters for verification: guarded, poisoned and zeroed before each run."""

    def __init__(self) -> None:
        self._workspace: GuardedMemory | None = None
        self._counters: GuardedMemory | None = None

    def reserve(self, workspace: int, counters: int) -> tuple[int, int]:
        """Addresses of the prepared buffers; see :meth:`prepare`."""
        return (
            self._workspace.address if self._workspace and workspace else 0,
            self._counters.address if self._counters and counters else 0,
        )

    def prepare(self, workspace: int, counters: int) -> None:
        """Fresh buffers of exactly these sizes, guard zones too, so that a write one byte beyond is seen."""
        self._workspace = _resized(self._workspace, workspace)
        self._counters = _resized(self._counters, counters)
        for memory in (self._workspace, self._counters):
            if memory:
                memory.poison()
        if self._counters:
            cupy = require_cupy()
            cupy.cuda.runtime.memsetAsync(self._counters.address, 0, counters, cupy.cuda.get_current_stream().ptr)

    def count_damage(self, stats: StatsBuffer) -> None:
        """Add changed guard bytes, and counter bytes that are not back at zero."""
        if self._workspace:
            self._workspace.count_damage(stats)
        if self._counters:
            self._counters.count_damage(stats)
            stats.count_changed(self._counters.address, self._counters.nbytes, 0)


def _resized(memory: GuardedMemory | None, nbytes: int) -> GuardedMemory | None:
    if nbytes == 0:
        return None
    return memory if memory is not None and memory.nbytes == nbytes else GuardedMemory(nbytes)


def scalars_of(problem: Problem) -> dict[str, float]:
    """The values of the problem's scalars (alpha, beta) that its own inputs use."""
    small = problem.with_axes(**dict.fromkeys(problem.axes, 1))
    return {name: float(value) for name, value in small.inputs(0).items() if value.ndim == 0}


class Operands:
    """One guarded set of a problem's tensors."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.tensors = problem.tensors()
        self.scalars = scalars_of(problem)
        self._memory = {t.name: GuardedMemory(t.elements * t.dtype.bytes) for t in self.tensors}
        self.pointers = {name: memory.address for name, memory in self._memory.items()}
        self.output: Tensor = next(t for t in self.tensors if t.output)
        self.seed: int | None = None

    def refresh(self, seed: int) -> None:
        """Fresh random inputs of this seed between fresh guard zones."""
        for memory in self._memory.values():
            memory.poison()
        fill_inputs(self.tensors, self.pointers, seed)
        self.seed = seed

    def poison_output(self) -> None:
        """Every element of the output, and the padding between its rows, to poison."""
        memory = self._memory[self.output.name]
        poison(memory.address, memory.nbytes)

    def count_damage(self, rows: int, stats: StatsBuffer) -> None:
        """Add bytes changed outside the first ``rows`` rows of the output: padding, later rows, all guard zones."""
        out, size = self.output, self.output.dtype.bytes
        address, columns = self.pointers[out.name], out.shape[1]
        if out.ld > columns and rows > 1:
            stats.count_changed_rows(address, rows - 1, out.ld * size, columns * size, out.ld * size, POISON)
        written = ((rows - 1) * out.ld + columns) * size
        rest = self._memory[out.name].nbytes - written
        if rest:
            stats.count_changed(address + written, rest, POISON)
        for memory in self._memory.values():
            memory.count_damage(stats)


def fill_inputs(tensors: tuple[Tensor, ...], pointers: dict[str, int], seed: int) -> None:
    """Random values into every input."""
    for index, t in enumerate(tensors):
        if not t.output:
            fill_normal(pointers[t.name], t.dtype.numpy, t.shape, t.ld, seed * 16 + index)


class Copies:
    """Plain copies of the operands with random inputs of their own, as many as are asked for, in one allocation.

    Args:
        problem: what they are for.
        count: how many.
    """

    def __init__(self, problem: Problem, count: int) -> None:
        tensors = problem.tensors()
        sizes = {t.name: -(-t.elements * t.dtype.bytes // _ALIGN) * _ALIGN for t in tensors}
        each = sum(sizes.values())
        self.pointers: list[dict[str, int]] = []
        if not count:
            return
        self._memory: Any = require_cupy().cuda.alloc(each * count)
        base = int(self._memory.ptr)
        poison(base, each * count)
        for index in range(count):
            place, pointers = base + index * each, {}
            for name, size in sizes.items():
                pointers[name] = place
                place += size
            fill_inputs(tensors, pointers, 1_000_003 + index)
            self.pointers.append(pointers)


def copies_for(problem: Problem, l2: int, free: int) -> int:
    """How many sets of operands a rotation needs so that none is left in the L2 when its turn comes again.

    At least three L2 sizes of operands in all, at least two sets where memory allows, and at most half of ``free``.
    """
    each = sum(t.elements * t.dtype.bytes for t in problem.tensors())
    wanted = max(2, -(-3 * l2 // max(1, each)))
    return max(1, min(wanted, MOST_COPIES, (free // 2) // max(1, each)))


MOST_COPIES = 2048
"""Tiny problems would need more to leave the L2; a graph of more launches would take too long to build in a trial."""
