"""How a trial is timed at the power cap: a glance beside the baseline, and contenders alone, each at its own clock."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
from clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.device.cuda import timing
from gemmtune.device.cuda.settled import (
    CLOSE,
    CONTENDER,
    FEWEST,
    FIRST_LEAD,
    FRESH,
    GLANCES,
    LEAD,
    LEVEL_LEAD,
    LEVELS,
    LONG,
    LONG_SAMPLES,
    SHORT,
    SHORT_SAMPLES,
    Settled,
)  # fmt: skip
from gemmtune.device.cuda.timing import CAP, CLOCK_STEP, Series, Stopwatch


class Watch:
    """Knows what each thing takes beside the baseline and alone, and who was asked."""

    clock_mhz, throttle = 1400.0, CAP

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.leads: list[float] = []
        self.beside = {"kernel": 100.0, "cublas": 105.0}
        self.us = {"kernel": 100.0, "cublas": 110.0}

    def round(self, items: list[Series]) -> None:
        for item in items:
            item.samples += [self.beside[item.replay.name]] * 2

    def alone(self, item: Series, us: float, lead: float, span: float, samples: int) -> list[float]:
        if item.replay.name == "cublas":
            self.leads.append(lead)
            assert (span, samples) == (SHORT, SHORT_SAMPLES)
        else:
            assert (lead, span, samples) in {(LEAD, SHORT, SHORT_SAMPLES), (0.0, LONG, LONG_SAMPLES)}
        self.asked.append(f"{item.replay.name} {'on' if lead == 0 else 'anew'}")
        return [self.us[item.replay.name]] * samples


def series(name: str) -> Series:
    replay: Any = SimpleNamespace(name=name, launches=10)
    return Series(replay)


BASELINE = series("cublas")


def test_the_ratio_is_that_of_two_levels_and_the_baselines_is_the_middle_of_its_latest() -> None:
    clock = Clock()
    watch: Any = Watch()
    settled, kernel, baseline = Settled(clock), series("kernel"), series("cublas")

    def measured() -> Any:
        return settled.measure(watch, kernel, 100.0, baseline, 110.0, 1.05)[0]

    found = measured()
    assert (found.us, found.baseline_us, found.throttle) == (100.0, 110.0, CAP)
    half = CLOCK_STEP / 2 / watch.clock_mhz  # steady as the samples are, the clock may have kept to one side
    assert (found.us_low, found.us_high) == pytest.approx((100.0 * (1 - half), 100.0 * (1 + half)))
    assert (found.ratio_low, found.ratio, found.ratio_high) == pytest.approx((1.1 * (1 - half), 1.1, 1.1 * (1 + half)))
    clock.now = FRESH
    watch.us["cublas"] = 150.0  # which nobody asks yet
    assert measured().ratio == pytest.approx(1.1)
    assert watch.asked == ["cublas anew", *["kernel anew", "kernel on"] * 2]
    for passed in range(1, 2 * LEVELS):
        clock.now = (FRESH + 1e-3) * (passed + 1)
        watch.us["cublas"] = 150.0 if passed == 1 else 110.0 if passed < LEVELS else 120.0
        measured()
        if 1 < passed <= LEVELS + 1:  # one that is far off moves nothing, nor do few new ones
            assert measured().ratio == pytest.approx(1.1)
    assert measured().ratio == pytest.approx(1.2)
    assert watch.leads == [FIRST_LEAD, *[LEVEL_LEAD] * (2 * LEVELS - 1)]
    baseline = series("cublas")  # another graph, of another cache state, say
    watch.us["cublas"] = 90.0
    assert measured().ratio == pytest.approx(0.9)


def look(settled: Settled, ratio: float) -> None:
    watch: Any = Watch()
    watch.beside = {"kernel": 100.0, "cublas": 100.0 * ratio}
    assert settled.glance(watch, series("kernel"), Series(BASELINE.replay)) == pytest.approx(ratio)


def settle(settled: Settled, us: float, glance: float = 1.0, *, sound: bool = True, **how: bool) -> str:
    """A kernel that takes ``us`` once settled beside a baseline of 110; why it is behind."""
    watch: Any = Watch()
    watch.us["kernel"] = us
    look(settled, glance)
    found, reason = settled.measure(watch, series("kernel"), us, BASELINE, 110.0, glance, **how)
    if sound and not reason:
        settled.keep(found)
    return reason


def test_who_is_far_at_a_glance_from_what_the_best_would_be_is_behind() -> None:
    settled = Settled(Clock())
    for i in range(FEWEST):
        assert settled.behind(0.1) == ""  # too little is known
        settle(settled, 100.0 - i / 100, 0.88)  # 1.1 of the baseline once settled, 0.88 at a glance
    for glance in (0.7, 0.8, 0.9):
        assert (settled.behind(glance) == "") is (glance >= 0.88 * CONTENDER)
    assert settled.behind(0.7).startswith("At a glance, at 0.700 of the baseline, it is clearly behind the best so far")
    for _ in range(2):
        settle(settled, 90.0, 0.9)  # better ones make it harder
    assert settled.behind(0.88 * CONTENDER + 0.01)


@pytest.mark.parametrize("wild", [5.0, 0.01])
def test_one_glance_that_is_far_off_puts_nobody_behind(wild: float) -> None:
    settled = Settled(Clock())
    for i in range(FEWEST + 2):
        settle(settled, 100.0, wild if i == 1 else 0.88)
    assert settled.behind(0.88) == ""
    assert settled.behind(0.8)


def test_where_the_clock_at_glances_has_changed_for_good_those_that_stand_out_still_settle() -> None:
    settled = Settled(Clock())
    for _ in range(FEWEST):
        settle(settled, 100.0, 1.3)  # much quicker at a glance than once settled
    for ratio in [0.9, 1.0, 0.95, 0.8] * GLANCES:  # from now on nobody is
        look(settled, ratio)
    assert settled.behind(1.0 * CONTENDER + 0.01) == ""
    assert settled.behind(1.0 * CONTENDER - 0.01)


def test_beside_another_baseline_all_begins_anew() -> None:
    settled = Settled(Clock())
    for _ in range(FEWEST):
        settle(settled, 100.0)
    watch: Any = Watch()
    other = series("cublas")
    settled.glance(watch, series("kernel"), other)
    assert settled.best_us == math.inf
    assert settled.behind(0.01) == ""
    watch.us = {"kernel": 500.0, "cublas": 600.0}
    found, reason = settled.measure(watch, series("kernel"), 500.0, other, 600.0, 1.0)
    assert (found.ratio, reason) == (pytest.approx(1.2), "")


def test_what_the_baselines_level_was_off_by_puts_nobody_behind() -> None:
    clock, watch = Clock(), cast("Any", Watch())
    settled = Settled(clock)
    watch.us["cublas"] = 130.0  # while the card made up for a pause
    settled.keep(settled.measure(watch, series("kernel"), 100.0, BASELINE, 110.0, 1.0)[0])
    watch.us["cublas"] = 110.0
    for passed in range(1, 4):
        clock.now = passed * (FRESH + 1)
        assert settled.measure(watch, series("kernel"), 100.0, BASELINE, 110.0, 1.0)[1] == ""


def test_one_lucky_time_puts_nobody_behind() -> None:
    settled = Settled(Clock())
    settle(settled, 100.0)
    settle(settled, 50.0)
    assert settle(settled, 101.0) == ""


def test_with_who_was_not_sound_nobody_is_compared() -> None:
    settled = Settled(Clock())
    for _ in range(FEWEST):
        settle(settled, 50.0, 1.3, sound=False)
    assert settled.best_us == math.inf
    assert settle(settled, 100.0) == ""
    assert settled.behind(0.65) == ""  # half of their 1.3, as it is half as quick
    other: Any = SimpleNamespace(us=9.0)
    settled.keep(other)  # timed in another way
    assert settled.best_us == 100.0


def test_who_is_far_from_the_best_once_settled_is_not_timed_for_long() -> None:
    watch: Any = Watch()
    settled = Settled(Clock())
    assert settle(settled, 100.0) == ""  # 1.1 of the baseline
    assert settle(settled, 100.0 / CLOSE * 0.999, sound=False) == ""
    behind = "Settled, at 103.2 us, it is clearly behind the best so far (100.0 us)."
    assert settle(settled, 100.0 / CLOSE * 1.001) == behind
    watch.us["kernel"] = 100.0 / CLOSE * 1.001
    settled.measure(watch, series("kernel"), 100.0, BASELINE, 110.0, 1.0)
    assert watch.asked == ["kernel anew"]
    assert settle(settled, 1000.0, thorough=True) == ""


def test_a_glance_is_one_round() -> None:
    watch: Any = Watch()
    kernel, baseline = series("kernel"), series("cublas")
    assert Settled(Clock()).glance(watch, kernel, baseline) == pytest.approx(1.05)
    assert len(kernel.samples) == len(baseline.samples) == 2


class Gpu:
    """Time passes while replays run; events remember when they were reached."""

    def __init__(self, replay_us: float) -> None:
        self.now = 0.0
        self.launched: list[float] = []
        self.replay_us = replay_us
        gpu = self

        class Event:
            at = 0.0

            def record(self, stream: Any) -> None:
                self.at = gpu.now

            def synchronize(self) -> None:
                pass

        def launch(stream: Any) -> None:
            gpu.launched.append(gpu.now)
            gpu.now += gpu.replay_us

        self.launch = launch
        self.cupy = SimpleNamespace(
            cuda=SimpleNamespace(Event=Event, get_elapsed_time=lambda start, end: (end.at - start.at) / 1e3)
        )


@given(us=st.floats(1.0, 5e4), launches=st.integers(1, 400), samples=st.integers(1, 8))
def test_alone_runs_its_lead_untimed_and_cuts_its_span_into_samples(us: float, launches: int, samples: int) -> None:
    gpu = Gpu(us * launches)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "require_cupy", lambda: gpu.cupy)
        watch = Stopwatch(object(), "sustained", None)
        replay: Any = SimpleNamespace(name="kernel", launches=launches, launch=gpu.launch)
        found = watch.alone(Series(replay), us, LEAD, LONG, samples)
    assert found == [pytest.approx(us)] * samples
    lead = math.ceil(LEAD * 1e6 / (us * launches))
    timed = len(gpu.launched) - lead
    assert timed % samples == 0
    each = timed // samples
    assert each == 1 or abs(each * us * launches - LONG * 1e6 / samples) <= us * launches


@pytest.mark.parametrize(("regime", "words", "capped"), [
    ("sustained", "power cap", True), ("sustained", "thermal (software), power cap", True),
    ("sustained", "", False), ("sustained", "hardware slowdown", False), ("burst", "power cap", False),
])  # fmt: skip
def test_the_power_cap_counts_in_the_sustained_regime_alone(
    regime: Any, words: str, capped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(10.0)
    monkeypatch.setattr(timing, "require_cupy", lambda: gpu.cupy)
    monitor: Any = SimpleNamespace(clock_mhz=lambda: 1400.0, throttle=lambda: words)
    watch = Stopwatch(object(), regime, monitor)
    assert not watch.capped
    replay: Any = SimpleNamespace(name="kernel", launches=3, launch=gpu.launch)
    monkeypatch.setattr(timing, "BURST_IDLE", 0.0)
    watch._stream = SimpleNamespace(synchronize=lambda: None)
    watch.round([Series(replay)])
    assert watch.capped is capped
