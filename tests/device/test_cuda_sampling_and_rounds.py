"""What a reference covers and when repeating stops, without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.device.cuda import timing
from gemmtune.device.cuda.reference import GemmReference, affordable_flops
from gemmtune.device.cuda.timing import (
    CLOCK_STEP,
    FINAL,
    FREE_SPAN,
    PIECES,
    SETTLE,
    SPAN,
    TRIAL,
    Plan,
    Series,
    Stopwatch,
    interleave,
    measurement,
    settle,
)
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu


def chosen(shape: tuple[int, int, int], first_rows: int = 0, name: str = "h200") -> tuple[Any, Any]:
    operands: Any = SimpleNamespace(problem=Gemm(*shape), seed=3)
    return GemmReference(operands, gpu(name))._choose(first_rows)


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 30_000), n=st.integers(1, 30_000), k=st.integers(1, 100_000), first=st.integers(0, 512),
    name=st.sampled_from(["h200", "rtx4090", "t4"]),
)  # fmt: skip
def test_references_stay_within_memory_and_time_and_hold_the_edges(
    m: int, n: int, k: int, first: int, name: str
) -> None:
    rows, columns = chosen((m, n, k), min(first, m - 1), name)
    least = min(m, 32) * min(n, 32)
    assert len(rows) * len(columns) <= max(2**25, least)
    assert len(rows) * k <= max(2**25, 32 * k)
    assert len(rows) * len(columns) * 4 * k <= max(affordable_flops(gpu(name)) * 1.01, least * 4 * k)
    for picked, size in ((rows, m), (columns, n)):
        assert (np.diff(picked) > 0).all()
        assert {0, size - 1} <= set(picked.tolist())


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (1, 28672, 8192), (1024, 4096, 1024), (1000, 1000, 1000)])
def test_the_usual_shapes_are_compared_whole_on_an_h200(shape: tuple[int, int, int]) -> None:
    rows, columns = chosen(shape)
    assert (len(rows), len(columns)) == shape[:2]


def test_a_sample_holds_the_first_rows_that_smaller_runs_need() -> None:
    rows, columns = chosen((8192, 8192, 8192), first_rows=512)
    assert len(rows) < 8192
    assert len(columns) == 8192
    assert set(range(512)) <= set(rows.tolist())


class Watch:
    """Appends samples as a stopwatch would; the GPU slows down as it warms."""

    clock_mhz, throttle = 1500.0, "power cap"

    def __init__(self, noise: float) -> None:
        self._rng = np.random.default_rng(0)
        self._noise = noise
        self.rounds = 0
        self.capped = False

    def round(self, series: list[Series]) -> None:
        self.rounds += 1
        for item in [*series, *reversed(series)]:
            base: Any = item.replay
            drift = 1 + 0.05 * self.rounds
            item.samples.append(base * drift * (1 + self._noise * self._rng.standard_normal()))


def race(noise: float, plan: Plan, **options: Any) -> tuple[Any, Series, Series]:
    watch: Any = Watch(noise)
    ours, baseline = Series(10.0), Series(20.0)  # type: ignore[arg-type]
    interleave(watch, baseline, [ours], plan, **options)
    return watch, ours, baseline


def test_quiet_ratios_stop_early_however_the_clock_drifts() -> None:
    watch, ours, baseline = race(0.0005, TRIAL)
    assert len(ours.samples) == TRIAL.fewest
    m = measurement(ours, baseline, watch)
    assert m.ratio == pytest.approx(2.0, rel=0.005)
    assert m.ratio_high - m.ratio_low < 0.01  # type: ignore[operator]
    assert (m.us_high - m.us_low) / m.us > 0.05  # the drift is in the times alone
    assert (m.clock_mhz, m.throttle) == (1500.0, "power cap")


@given(st.floats(1.0, 1e5), st.floats(0.2, 3.0), st.floats(900.0, 1980.0))
def test_at_the_power_cap_times_one_step_of_the_clock_apart_are_not_told_apart(
    us: float, ratio: float, clock: float
) -> None:
    watch: Any = Watch(0.0)
    watch.capped, watch.clock_mhz = True, clock
    baseline = Series(us * ratio, [us * ratio] * 6)  # type: ignore[arg-type]
    copy, other = (Series(us, [us * slow] * 6) for slow in (1.0, 1 + CLOCK_STEP / clock * 0.99))  # type: ignore[arg-type]
    one, two = (measurement(each, baseline, watch) for each in (copy, other))
    assert two.ratio_high > one.ratio_low > two.ratio  # type: ignore[operator]
    assert two.us_low < one.us_high < two.us
    watch.capped = False
    free = measurement(copy, baseline, watch)
    assert (free.us_low, free.us_high, free.ratio_low) == (free.us, free.us, free.ratio)


def test_noisy_ratios_use_the_plan_up() -> None:
    _, ours, _ = race(0.05, Plan(6, 30, 60.0))
    assert len(ours.samples) == 30
    _, ours, _ = race(0.05, Plan(6, 1000, 0.0))
    assert len(ours.samples) == 6
    assert FINAL.most > TRIAL.most


def test_a_clear_loser_stops_at_once() -> None:
    _, ours, _ = race(0.05, FINAL, stop=lambda: True)
    assert len(ours.samples) == 2


@given(st.lists(st.tuples(st.floats(1.0, 1e5), st.integers(1, 500)), min_size=1, max_size=9))
def test_everything_settles_as_long_before_a_sample_and_is_timed_as_long(sizes: list[tuple[float, int]]) -> None:
    series = {Series(SimpleNamespace(launches=launches)): us for us, launches in sizes}  # type: ignore[arg-type]
    assert all((one.lead, one.span) == (0, 1) for one in series)
    for capped, lead, span, pieces in ((True, SETTLE, SPAN, PIECES), (False, 0.0, FREE_SPAN, 1)):
        settle(series, capped=capped)
        for one, us in series.items():
            assert one.pieces == pieces
            replay = us * one.replay.launches
            for replays, seconds in ((one.lead, lead), (one.span, span)):
                assert replays * replay >= seconds * 1e6 * (1 - 1e-9)
                assert (replays - 1) * replay <= seconds * 1e6 * (1 + 1e-9)


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_every_round_goes_there_and_back_and_more_than_two_change_places(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
    cuda = SimpleNamespace(Event=lambda: event, get_elapsed_time=lambda start, end: 1.0)
    monkeypatch.setattr(timing, "require_cupy", lambda: SimpleNamespace(cuda=cuda))
    ran: list[int] = []

    def one(name: int) -> Series:
        replay = SimpleNamespace(launches=1, launch=lambda stream: ran.append(name))
        return Series(replay)  # type: ignore[arg-type]

    series = [one(name) for name in range(count)]
    rounds = set()
    watch = Stopwatch(SimpleNamespace(), "sustained", None, seed=3)
    for _ in range(20):
        ran.clear()
        watch.round(series)
        assert ran == ran[::-1]
        assert sorted(ran[:count]) == list(range(count))
        rounds.add(tuple(ran[:count]))
    assert all(len(item.samples) == 40 for item in series)
    assert len(rounds) == 1 if count <= 2 else len(rounds) > 3


def test_a_visit_of_several_samples_pairs_those_of_the_way_there_with_those_of_the_way_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]

    class Event:
        at = 0.0

        def record(self, stream: Any) -> None:
            self.at = now[0]

        def synchronize(self) -> None:
            pass

    cuda = SimpleNamespace(Event=Event, get_elapsed_time=lambda start, end: end.at - start.at)
    monkeypatch.setattr(timing, "require_cupy", lambda: SimpleNamespace(cuda=cuda))
    launched = []

    def launch(stream: Any) -> None:  # each takes a millisecond longer than the one before
        launched.append(len(launched))
        now[0] += len(launched)

    item = Series(SimpleNamespace(launches=10, launch=launch), lead=2, span=1, pieces=3)  # type: ignore[arg-type]
    Stopwatch(SimpleNamespace(), "sustained", None).round([item])
    there, back = [3.0, 4.0, 5.0], [8.0, 9.0, 10.0]
    assert item.samples == [us * 100 for pair in zip(there, back, strict=True) for us in pair]
