"""Everything an engine keeps for one problem: buffers, prover, operand copies, the baseline and its graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from gemmtune.device.base import Cache, Regime
from gemmtune.device.baselines import Baseline, baseline_for
from gemmtune.device.cuda.operands import Copies, Operands, copies_for
from gemmtune.device.cuda.proof import Prover
from gemmtune.device.cuda.settled import Settled
from gemmtune.device.cuda.timing import Replay, Stopwatch, launches_for
from gemmtune.device.launch import LoadedKernel
from gemmtune.device.scratch import StreamScratch
from gemmtune.device.toolchain import require_cupy
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem

Call = Callable[[int], None]


class Bench:
    """The workbench of one problem on one stream. Made cheaply; what only timing needs is made when timing starts."""

    def __init__(self, problem: Problem, gpu: Gpu, stream: Any) -> None:
        self.problem = problem
        self._gpu = gpu
        self._stream = stream
        self.operands = Operands(problem)
        self.prover = Prover(self.operands, gpu)
        self.warm: set[Regime] = set()
        """The regimes in which the GPU has been brought to its steady state for this problem."""
        self.capped = False
        """Whether it has reached its power cap, in the sustained regime."""
        self.settled = Settled()
        self._scratch = StreamScratch(stream.ptr, limit=2**34)
        self._env = {**problem.environment(), **self.operands.scalars}
        self._baselines: dict[tuple[Cache, bool], Replay] = {}

    @cached_property
    def _copies(self) -> Copies:
        free = int(require_cupy().cuda.runtime.memGetInfo()[0])
        if self.operands.seed is None:
            self.operands.refresh(0)
        return Copies(self.problem, copies_for(self.problem, self._gpu.l2, free) - 1)

    @cached_property
    def _baseline(self) -> Baseline:
        return baseline_for(self.problem)

    def pointers(self, cache: Cache) -> list[dict[str, int]]:
        """The sets of operands a graph rotates over; the first is the one that is verified."""
        return [self.operands.pointers] if cache == "warm" else [self.operands.pointers, *self._copies.pointers]

    def calls(self, kernel: LoadedKernel, cache: Cache) -> list[Call]:
        """One launch of the kernel for each set of operands."""
        out: list[Call] = []
        for pointers in self.pointers(cache):
            prepared = kernel.prepare(self._env, pointers)
            out.append(partial(prepared.launch, scratch=self._scratch))
        return out

    def baseline(self, cache: Cache, watch: Stopwatch, *, overlap: bool = False) -> Replay:
        """The baseline's graph, made once for each way of launching."""
        if (cache, overlap) not in self._baselines:
            launch = partial(self._baseline.launch, scalars=self.operands.scalars)
            calls: list[Call] = [partial(launch, pointers) for pointers in self.pointers(cache)]
            calls[0](self._stream.ptr)  # loads the library's kernel and allocates its workspace
            us = estimate(calls, watch)
            launches = launches_for(us, len(calls))
            replay = Replay(self._baseline.name, calls, launches, self._stream, overlap=overlap)
            self._baselines[cache, overlap] = replay
        return self._baselines[cache, overlap]


def estimate(calls: list[Call], watch: Stopwatch, launches: int = 3) -> float:
    """Microseconds of one launch, roughly: a few in a row without a graph."""

    def some() -> None:
        for index in range(launches):
            calls[index % len(calls)](require_cupy().cuda.get_current_stream().ptr)

    return watch.once(some) / launches
