"""How a trial is timed at the power cap: each at its own clock, the baseline's level shared by trials close in time."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.device.cuda import timing
from gemmtune.device.cuda.settled import FRESH, LEAD, SAMPLES, SPAN, Settled
from gemmtune.device.cuda.timing import CAP, Series, Stopwatch


class Watch:
    """Knows what each thing takes alone, and who was asked."""

    clock_mhz, throttle = 1400.0, CAP

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.us = {"kernel": 100.0, "cublas": 110.0}

    def alone(self, item: Series, us: float, lead: float, span: float, samples: int) -> list[float]:
        assert (lead, span, samples) == (LEAD, SPAN, SAMPLES)
        self.asked.append(item.replay.name)
        return [self.us[item.replay.name]] * samples


def series(name: str) -> Series:
    replay: Any = SimpleNamespace(name=name, launches=10)
    return Series(replay)


def test_the_ratio_is_that_of_two_levels_and_the_baselines_is_kept_while_fresh() -> None:
    now = [0.0]
    watch: Any = Watch()
    settled, kernel, baseline = Settled(lambda: now[0]), series("kernel"), series("cublas")

    def measured() -> Any:
        return settled.measure(watch, kernel, 100.0, baseline, 110.0)

    found = measured()
    assert (found.us, found.baseline_us, found.throttle) == (100.0, 110.0, CAP)
    assert found.ratio == found.ratio_low == found.ratio_high == pytest.approx(1.1)
    now[0] = FRESH
    watch.us["cublas"] = 120.0  # which nobody asks yet
    assert measured().ratio == pytest.approx(1.1)
    assert watch.asked == ["cublas", "kernel", "kernel"]
    now[0] = FRESH + 1e-3
    assert measured().ratio == pytest.approx(1.2)
    baseline = series("cublas")  # of another problem, say
    watch.us["cublas"] = 90.0
    assert measured().ratio == pytest.approx(0.9)
    settled.forget()
    watch.us["cublas"] = 50.0
    assert measured().ratio == pytest.approx(0.5)


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
        found = watch.alone(Series(replay), us, LEAD, SPAN, samples)
    assert found == [pytest.approx(us)] * samples
    lead = math.ceil(LEAD * 1e6 / (us * launches))
    timed = len(gpu.launched) - lead
    assert timed % samples == 0
    each = timed // samples
    assert each == 1 or abs(each * us * launches - SPAN * 1e6 / samples) <= us * launches


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
