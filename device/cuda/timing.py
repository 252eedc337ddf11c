"""Timing: CUDA graphs of launches that rotate over operand copies, in rounds that interleave everything compared.

A round replays each graph twice, there and back (A B C C B A), so that a drift of the clock falls on all alike, and
every round has another order.
Graphs last about 2.5 ms, so that what starting one costs does not count.

The SM clock follows the power drawn over the last tenths of a second, and kernels differ in what they draw: measured
back to back, a frugal kernel lends its clock to a hungry one. What is timed for the record in the sustained regime
therefore runs a while untimed before each sample, so that every kernel has the clock that its own power leaves, and a
sample is long (:func:`settle`); trials do so in short (:mod:`gemmtune.device.cuda.settled`).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gemmtune.device.base import Measurement, Regime
from gemmtune.device.cuda.nvml import Monitor
from gemmtune.device.cuda.overlap import OverlappedGraph
from gemmtune.device.statistics import Interval, is_multimodal, median_interval
from gemmtune.device.toolchain import require_cupy

GRAPH_US = 2500.0
"""How long a graph should run."""
LONGEST_GRAPH_US = 30_000.0
MOST_LAUNCHES = 4096
TIGHT = 0.005
"""Half-width of the ratio's interval, relative, at which repeating stops."""
BEATEN = 0.33
"""A kernel whose ratio surely lies below this fraction of the best one's is abandoned."""
UNSTABLE = 0.1
"""Relative half-width of the ratio's interval above which, repeats spent, a time is no answer."""
CAP = "power cap"
"""What says that the card draws all the power it may, in :mod:`gemmtune.device.cuda.nvml`'s words."""
THERMAL = frozenset({"thermal (software)", "thermal (hardware)"})
"""What says that the card ran too hot, in :mod:`gemmtune.device.cuda.nvml`'s words."""
LEVELS_APART = 0.02
"""Relative distance between two levels of a ratio from which on its median is no answer: less is lost in the noise."""
SETTLE, SPAN, PIECES = 0.1, 0.33, 3
"""At the power cap, for the record: seconds of untimed running before each visit of a kernel, seconds that a sample
takes, and samples of a visit.

The cap holds the power and lets the clock swing about its mean within half a second: one long visit tells more than
many short ones. By how much copies of one kernel then differ: ``benchmarks/h200/noise.json``.
"""
CLOCK_STEP = 15.0
"""MHz from one SM clock to the next, on data-centre GPUs (``nvidia-smi -q -d SUPPORTED_CLOCKS``)."""
FREE_SPAN = 0.05
"""Seconds that a sample for the record takes where the clock stands still."""
FAR = 4.0
"""A kernel this many times slower than the baseline is timed apart: in between, it would let the card cool."""
FAR_ROUNDS = 3
BURST_IDLE = 0.08
"""Seconds of idling before each sample of the burst regime, in which the card's power budget recovers."""


def launches_for(us: float, copies: int) -> int:
    """Launches of a graph: about :data:`GRAPH_US` long, whole turns of the rotation unless that would take too long."""
    us = max(us, 0.5)
    wanted = math.ceil(GRAPH_US / us)
    most = max(1, min(MOST_LAUNCHES, int(LONGEST_GRAPH_US / us)))
    launches = min(max(wanted + -wanted % copies, copies), most)
    return launches - launches % copies if launches > copies else launches


class Replay:
    """A graph of ``launches`` launches, ``calls`` in turn; what they set up must be set up already.

    ``overlap``: each may begin before the one ahead has ended (:mod:`gemmtune.device.cuda.overlap`).
    """

    def __init__(
        self, name: str, calls: Sequence[Callable[[int], None]], launches: int, stream: Any, *, overlap: bool = False
    ) -> None:
        self.name = name
        self.launches = launches
        stream.begin_capture()
        try:
            for index in range(launches):
                calls[index % len(calls)](stream.ptr)
        except BaseException:
            with contextlib.suppress(RuntimeError):  # what invalidated the capture is the error to report
                stream.end_capture()
            raise
        captured = stream.end_capture()
        self._graph = OverlappedGraph(captured, launches) if overlap else captured
        self._graph.upload(stream)

    def launch(self, stream: Any) -> None:
        """Enqueue one replay."""
        self._graph.launch(stream)


@dataclass(eq=False)
class Series:
    """The samples of one thing timed, in microseconds a launch."""

    replay: Replay
    samples: list[float] = field(default_factory=list)
    lead: int = 0
    """Untimed replays before each visit in the sustained regime."""
    span: int = 1
    """Replays that are timed as one sample there."""
    pieces: int = 1
    """Samples in a row there."""


@dataclass(frozen=True)
class Plan:
    """How long to go on: ratios at least and at most, and seconds in all."""

    fewest: int
    most: int
    seconds: float


TRIAL = Plan(6, 12, 0.12)
FINAL = Plan(6, 40, 5.0)


def settle(series: Mapping[Series, float], *, capped: bool) -> None:
    """Have each of ``series`` run untimed for :data:`SETTLE` before a visit of :data:`PIECES` samples.

    Values are about what a launch takes, in microseconds. Not ``capped``: the clock stands still, and single samples of
    :data:`FREE_SPAN` will do.
    """
    for item, us in series.items():
        replay_us = max(us, 0.5) * item.replay.launches
        item.lead = math.ceil(SETTLE * 1e6 / replay_us) if capped else 0
        item.span = math.ceil((SPAN if capped else FREE_SPAN) * 1e6 / replay_us)
        item.pieces = PIECES if capped else 1


class Stopwatch:
    """Times replays on one stream.

    Args:
        stream: CuPy stream.
        regime: ``sustained``: samples follow each other without a pause; ``burst``: each after an idle while.
        monitor: reads clocks during the run, where there is one.
        seed: of the orders in which more than two things take turns.
    """

    def __init__(self, stream: Any, regime: Regime, monitor: Monitor | None, seed: int = 0) -> None:
        self._stream = stream
        self.regime: Regime = regime
        self._monitor = monitor
        self._rng = random.Random(seed)  # noqa: S311 - no secret
        self.clock_mhz: float | None = None
        self._throttles: dict[str, None] = {}

    @property
    def throttle(self) -> str:
        """Everything that held the clock down at any reading, in words, comma-separated."""
        return ", ".join(self._throttles)

    def once(self, action: Callable[[], None]) -> float:
        """Microseconds of whatever ``action`` enqueues."""
        start, end = _event(), _event()
        start.record(self._stream)
        action()
        end.record(self._stream)
        end.synchronize()
        return _between([start, end], 1)[0]

    @property
    def capped(self) -> bool:
        """Whether the power cap held the clock down at any reading; it is not asked in the burst regime."""
        return self.regime == "sustained" and CAP in self._throttles

    def alone(self, item: Series, us: float, lead: float, span: float, samples: int) -> list[float]:
        """So many samples of ``item`` alone, in microseconds a launch, ``span`` seconds in all.

        It runs ``lead`` seconds untimed before. ``us``: about what a launch takes.
        """
        replay_us = max(us, 0.5) * item.replay.launches
        each = max(1, round(span * 1e6 / replay_us / samples))
        for _ in range(math.ceil(lead * 1e6 / replay_us)):
            item.replay.launch(self._stream)
        events = [_event() for _ in range(samples + 1)]
        events[0].record(self._stream)
        for event in events[1:]:
            for _ in range(each):
                item.replay.launch(self._stream)
            event.record(self._stream)
        self._read_clock()  # while the GPU is busy
        events[-1].synchronize()
        return _between(events, each * item.replay.launches)

    def warm(self, replays: Sequence[Replay], seconds: float) -> None:
        """Keep the GPU busy for about ``seconds``; in the burst regime, run each once."""
        if self.regime == "burst":
            seconds = 0.0
        for replay in replays:
            replay.launch(self._stream)
        self._stream.synchronize()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for replay in replays:
                replay.launch(self._stream)
            self._read_clock()
            self._stream.synchronize()

    def round(self, series: Sequence[Series]) -> None:
        """One sample of each there, one back.

        More than two take turns in another order each round: in a fixed one, each would stand at its own place in the
        swings of the clock, and its samples would agree with each other on a wrong time.
        """
        there = list(series)
        if len(there) > 2:
            self._rng.shuffle(there)
        order = [*there, *reversed(there)]
        if self.regime == "burst":
            for item in order:
                self._stream.synchronize()
                time.sleep(BURST_IDLE)
                us = self.once(partial(item.replay.launch, self._stream))
                item.samples.append(us / item.replay.launches)
                self._read_clock()
            return
        visits = []
        for item in order:
            for _ in range(item.lead):
                item.replay.launch(self._stream)
            events = [_event() for _ in range(item.pieces + 1)]
            events[0].record(self._stream)
            for event in events[1:]:
                for _ in range(item.span):
                    item.replay.launch(self._stream)
                event.record(self._stream)
            visits.append((item, events))
        self._read_clock()  # while the GPU is busy
        visits[-1][1][-1].synchronize()
        taken: dict[Series, list[list[float]]] = {}
        for item, events in visits:
            taken.setdefault(item, []).append(_between(events, item.span * item.replay.launches))
        for item, halves in taken.items():  # there, back, there, back: what is paired with what stands side by side
            item.samples += [us for pair in zip(*halves, strict=True) for us in pair]

    def _read_clock(self) -> None:
        if self._monitor is not None:
            self.clock_mhz = self._monitor.clock_mhz()
            self._throttles.update(dict.fromkeys(word for word in self._monitor.throttle().split(", ") if word))


def _event() -> Any:
    """A CUDA event that takes the time."""
    return require_cupy().cuda.Event()


def _between(events: Sequence[Any], launches: int) -> list[float]:
    """Microseconds a launch from each event to the next."""
    elapsed = require_cupy().cuda.get_elapsed_time
    return [float(elapsed(start, end)) * 1e3 / launches for start, end in itertools.pairwise(events)]


def interleave(
    watch: Stopwatch, baseline: Series, kernels: Sequence[Series], plan: Plan, stop: Callable[[], bool] = lambda: False
) -> None:
    """Rounds of everything until every ratio is tight, ``stop()`` says so, or the plan is used up."""
    end = time.perf_counter() + plan.seconds
    while True:
        watch.round([*kernels, baseline])
        count = len(baseline.samples)
        if stop() or count >= plan.most:
            return
        if count >= plan.fewest and (
            time.perf_counter() > end or all(median_interval(ratios(k, baseline)).spread <= TIGHT for k in kernels)
        ):
            return


def ratios(kernel: Series, baseline: Series) -> list[float]:
    """Baseline time over kernel time, sample by sample: each pair is of one half round.

    A kernel that was timed apart has fewer samples than the baseline; its ratio is far from 1 in any case.
    """
    return [b / k for b, k in zip(baseline.samples, kernel.samples, strict=False)]


def at_the_cap(interval: Interval, clock_mhz: float | None) -> Interval:
    """``interval``, reaching half a step of the clock to either side of its median at least.

    At the power cap the clock that a kernel's power leaves it lies between two steps, and for seconds the card may keep
    to either: samples of copies of one kernel then agree on times that lie 1 % apart, and among themselves do not tell.
    """
    half = CLOCK_STEP / 2 / clock_mhz if clock_mhz else 0.0
    low, high = min(interval.low, interval.median * (1 - half)), max(interval.high, interval.median * (1 + half))
    return Interval(interval.median, low, high)


def measurement(kernel: Series, baseline: Series, watch: Stopwatch) -> Measurement:
    """Medians and intervals of a kernel's samples and of its ratios."""
    ours, ratio = median_interval(kernel.samples), median_interval(ratios(kernel, baseline))
    if watch.capped:
        ours, ratio = at_the_cap(ours, watch.clock_mhz), at_the_cap(ratio, watch.clock_mhz)
    return Measurement(
        us=ours.median, us_low=ours.low, us_high=ours.high,
        baseline_us=median_interval(baseline.samples).median,
        ratio=ratio.median, ratio_low=ratio.low, ratio_high=ratio.high,
        samples=tuple(kernel.samples), baseline_samples=tuple(baseline.samples),
        clock_mhz=watch.clock_mhz, throttle=watch.throttle,
    )  # fmt: skip


def disturbance(measured: Measurement) -> str:
    """Why a measurement is no answer, as a sentence; empty where it is one.

    The card ran too hot (a power cap is its normal state and does not count); or the ratio varies beyond
    :data:`UNSTABLE`; or it has two :func:`levels`.
    """
    apart = levels(measured)
    if apart is None:
        return _unusable(measured)
    count, (low, high) = len(measured.samples), apart
    return f"Its ratio to the baseline has two levels over {count} samples, about {low:.3f} and {high:.3f}."


def levels(measured: Measurement) -> tuple[float, float] | None:
    """The lower and the upper level of a ratio to the baseline that has two, and nothing else against it; else None.

    It has two where its samples have (:func:`gemmtune.device.statistics.is_multimodal`), whose halves are
    :data:`LEVELS_APART`. Two levels that are the two halves of every round are what the one order of running gives
    and the other does not; each stands for half of the samples at all times, and so their middle is an answer.
    """
    found = sorted(ratios := [b / k for b, k in zip(measured.baseline_samples, measured.samples, strict=False)])
    half = len(found) // 2
    if not half or _unusable(measured):
        return None
    assert measured.ratio is not None  # noqa: S101 - every interleaved measurement has one
    low, high = median_interval(found[:half]).median, median_interval(found[-half:]).median
    if high - low < LEVELS_APART * measured.ratio or not is_multimodal(ratios) or _is_order(ratios, (low + high) / 2):
        return None
    return low, high


def _unusable(measured: Measurement) -> str:
    """What makes a measurement worthless: heat, or a ratio that varies beyond all use."""
    hot = [reason for reason in measured.throttle.split(", ") if reason in THERMAL]
    if hot:
        return f"The GPU ran too hot while it was timed and lowered its clock: {', '.join(hot)}."
    assert measured.ratio is not None  # noqa: S101 - every interleaved measurement has one, and its interval
    assert measured.ratio_low is not None  # noqa: S101
    assert measured.ratio_high is not None  # noqa: S101
    spread = (measured.ratio_high - measured.ratio_low) / 2 / measured.ratio
    if spread <= UNSTABLE:
        return ""
    return f"Its ratio to the baseline varies by {100 * spread:.0f} % over {len(measured.samples)} samples."


def _is_order(found: Sequence[float], middle: float) -> bool:
    """Whether samples above and below ``middle`` are those of the one and the other half of the rounds."""
    there = [index % 2 == 0 for index in range(len(found))]
    above = [way for way, ratio in zip(there, found, strict=True) if ratio > middle]
    below = [way for way, ratio in zip(there, found, strict=True) if ratio <= middle]
    return bool(above and below) and abs(sum(above) / len(above) - sum(below) / len(below)) > 2 / 3
