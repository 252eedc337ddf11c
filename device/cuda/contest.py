"""What a comparison times and checks beside the kernels: the peers that a job wants, and excerpts of every result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from gemmtune.device import verify
from gemmtune.device.base import Excerpt, Job, Report
from gemmtune.device.cuda.excerpt import inputs_at, outputs_at
from gemmtune.device.cuda.heats import run_alone
from gemmtune.device.cuda.timing import Replay, Series, Stopwatch, launches_for
from gemmtune.device.peers import Way, make_peer
from gemmtune.device.statistics import median_interval
from gemmtune.space.errors import GemmtuneError, LaunchError
from gemmtune.space.problem import Array

if TYPE_CHECKING:
    from typing import Any

    from gemmtune.device.cuda.bench import Bench

FIRST_ROUNDS = 2
"""Rounds in which all ways of a peer are timed; the quickest :data:`KEPT` that are right then get :data:`LAST_ROUNDS`
more, or, at the power cap, run alone."""
KEPT = 4
LAST_ROUNDS = 4


class Contest:
    """The peers of a comparison, made ready on the bench's operands; what cannot be is in ``absent``, with the reason.

    Args:
        bench: the problem's workbench; inputs must be there.
        job: which peers, how timed, and how large an excerpt.
        stream: CuPy stream.
        watch: tells the quickest of a peer's ways.
    """

    def __init__(self, bench: Bench, job: Job, stream: Any, watch: Stopwatch) -> None:
        self._bench = bench
        self._job = job
        self._stream = stream
        self._watch = watch
        self._ways: dict[str, Way] = {}
        self.series: dict[str, Series] = {}
        self.us: dict[Series, float] = {}
        """About what a launch of each takes, in microseconds."""
        self.absent: dict[str, str] = {}
        for name in job.peers:
            try:
                self._enter(name)
            except GemmtuneError as error:
                self.absent[name] = str(error)
            except Exception as error:  # a peer may fail as it likes: it is not what is being judged
                self.absent[name] = f"The peer {name} failed: {type(error).__name__}: {error}"

    def told(self, report: Report, kernel: Series) -> Report:
        """A kernel's report with the peers' times, and an excerpt of its result, the baseline's and the peers'."""
        medians = {name: median_interval(one.samples).median for name, one in self.series.items() if one.samples}
        excerpt = self._excerpt(kernel) if self._job.excerpt else None
        return replace(report, excerpt=excerpt, peers=medians, absent=dict(self.absent))

    # -------------------------------------------------------------------------------------------------- internals

    def _enter(self, name: str) -> None:
        sets = self._bench.pointers(self._job.cache)
        peer = make_peer(name, self._bench.problem, sets[0], self._bench.operands.scalars)
        way, replay, us = self._quickest(name, peer.ways)
        series = Series(replay)
        self._ways[name], self.series[name], self.us[series] = way, series, us

    def _quickest(self, name: str, ways: Sequence[Way]) -> tuple[Way, Replay, float]:
        """The quickest way that is right, its graph, and about what it takes in microseconds.

        Where none is, the quickest: whoever judges its result will say so.
        """
        ready: dict[Series, Way] = {}
        failure = ""
        for way in ways:
            try:
                ready[Series(self._replay(name, way, self._estimate(way)))] = way
            except LaunchError as error:
                failure = str(error)
        if not ready:
            raise LaunchError(failure or f"The peer {name} knows no way to compute {self._bench.problem.key}.")
        left = list(ready)
        if len(left) > 1:
            for one in left:
                one.replay.launch(self._stream)
            left = self._right(self._rounds(left, FIRST_ROUNDS), ready)
            left = self._settled(left) if self._watch.capped else self._rounds(left, LAST_ROUNDS)
        best = left[0]
        us = median_interval(best.samples).median if best.samples else self._estimate(ready[best])
        return ready[best], best.replay, us

    def _right(self, ways: Sequence[Series], ready: Mapping[Series, Way]) -> list[Series]:
        """The first :data:`KEPT` of ``ways`` whose result is right; where there are none, the first one.

        Some of a library's algorithms add parts of K in the output's type, which a proof of ours would not let pass.
        """
        if not self._job.verify:
            return list(ways[:KEPT])
        found = list(islice((one for one in ways if self._is_right(ready[one])), KEPT))
        return found or list(ways[:1])

    def _is_right(self, way: Way) -> bool:
        self._bench.operands.poison_output()
        way.deliver(self._bench.operands.pointers, self._stream.ptr)
        return not self._bench.prover.recheck()

    def _rounds(self, ways: Sequence[Series], count: int) -> list[Series]:
        """The quickest first, after so many more rounds of all."""
        for _ in range(count):
            self._watch.round(ways)
        return sorted(ways, key=lambda one: median_interval(one.samples).median)

    def _settled(self, ways: Sequence[Series]) -> list[Series]:
        """The quickest first once each runs at the clock that its own power leaves, as it is timed in the end."""
        times = run_alone(self._watch, {one: median_interval(one.samples).median for one in ways})
        return sorted(ways, key=lambda one: times[one])

    def _estimate(self, way: Way) -> float:
        """Microseconds of one launch, roughly; the first, untimed, loads and allocates."""
        first, launches = self._bench.pointers(self._job.cache)[0], 3
        way.launch(first, self._stream.ptr)

        def some() -> None:
            for _ in range(launches):
                way.launch(first, self._stream.ptr)

        return self._watch.once(some) / launches

    def _replay(self, name: str, way: Way, us: float) -> Replay:
        calls = [partial(way.launch, pointers) for pointers in self._bench.pointers(self._job.cache)]
        for call in calls:  # what a peer sets up for an address is not for capture
            call(self._stream.ptr)
        return Replay(name, calls, launches_for(us, len(calls)), self._stream, overlap=self._job.overlap)

    def _excerpt(self, kernel: Series) -> Excerpt:
        """Every result anew, each into a poisoned D, from launches back to back where they leave it there."""
        bench = self._bench
        rows, columns = self._places()
        outputs: dict[str, Array] = {}
        first = bench.operands.pointers

        def take(name: str, replay: Replay | None, way: Way | None = None) -> None:
            bench.operands.poison_output()
            if replay is not None:
                replay.launch(self._stream)
            elif way is not None:
                way.deliver(first, self._stream.ptr)
            outputs[name] = outputs_at(bench.operands, rows, columns)

        take("kernel", kernel.replay)
        baseline = bench.baseline(self._job.cache, self._watch, overlap=self._job.overlap)
        take(baseline.name, baseline)
        for name, way in self._ways.items():
            take(name, self.series[name].replay if way.deliver is way.launch else None, way)
        return Excerpt(rows, columns, inputs_at(bench.operands, rows, columns), outputs)

    def _places(self) -> tuple[Array, Array]:
        rng = np.random.default_rng([self._job.seed, self._job.excerpt])
        shape = self._bench.operands.output.shape
        rows, columns = (verify.sample_axis(size, self._job.excerpt, rng) for size in shape)
        return rows, columns
