"""How long a trial is timed, and what becomes of it: away from the power cap, at it, and for the finals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gemmtune.device.base import Job
from gemmtune.device.cuda.sampling import BEHIND, sample
from gemmtune.device.cuda.settled import CLOSE, CONTENDER, FEWEST, LONG_SAMPLES, SHORT_SAMPLES, Settled
from gemmtune.device.cuda.timing import FINAL, PIECES, TRIAL, Series
from gemmtune.space.gemm import Gemm

KERNEL: Any = None
BASELINE_US, SETTLED_BASELINE_US = 100.0, 120.0


class Watch:
    """Times that stand still: ``us`` beside the baseline, ``settled_us`` alone."""

    clock_mhz, throttle = 1500.0, "power cap"

    def __init__(self, us: float, settled_us: float = 0.0, *, caps: bool = False) -> None:
        self.us, self.settled_us = us, settled_us
        self.capped = caps

    def round(self, items: list[Series]) -> None:
        for item in items:
            us = self.us if item.replay.name == "kernel" else BASELINE_US
            item.samples += [us] * 2 * item.pieces

    def alone(self, item: Series, us: float, lead: float, span: float, samples: int) -> list[float]:
        return [self.settled_us if item.replay.name == "kernel" else SETTLED_BASELINE_US] * samples


def series(name: str) -> Series:
    replay: Any = SimpleNamespace(name=name, launches=10)
    return Series(replay)


def tried(bench: Any, us: float, settled_us: float = 0.0, **changes: Any) -> tuple[Any, str]:
    job = Job(Gemm(64, 64, 64), KERNEL, 0, **changes)
    watch: Any = Watch(us, settled_us)
    baseline = bench.baseline
    measured, reason = sample(job, bench, watch, (series("kernel"), us), (Series(baseline.replay), BASELINE_US))
    if not reason:  # as the engine does where it finds the time sound
        bench.settled.keep(measured)
    return measured, reason


@pytest.fixture
def bench() -> Any:
    return SimpleNamespace(capped=False, settled=Settled(lambda: 0.0), baseline=series("cublas"))


def test_away_from_the_cap_a_trial_goes_on_until_it_is_tight(bench: Any) -> None:
    measured, reason = tried(bench, 50.0)
    assert (measured.ratio, len(measured.samples), reason) == (2.0, TRIAL.fewest, "")


@pytest.mark.parametrize(("fraction", "samples", "beaten"), [
    (BEHIND * 1.01, TRIAL.fewest, False), (BEHIND * 0.99, 4, False), (0.3, 4, True),
])  # fmt: skip
def test_away_from_the_cap_who_is_behind_is_timed_less_and_who_is_far_behind_is_beaten(
    bench: Any, fraction: float, samples: int, beaten: bool
) -> None:
    measured, reason = tried(bench, BASELINE_US / fraction, best_ratio=1.0, best_us=100.0)
    assert len(measured.samples) == samples
    assert bool(reason) is beaten
    assert not beaten or reason == "At 0.300 of the baseline it is clearly behind the best so far (1.000)."


def test_at_the_cap_only_those_that_are_close_to_the_best_once_settled_are_timed_for_long(bench: Any) -> None:
    bench.capped = True
    for _ in range(FEWEST):
        best, reason = tried(bench, 80.0, 100.0)
        assert (best.ratio, best.baseline_us, len(best.samples), reason) == (1.2, SETTLED_BASELINE_US, LONG_SAMPLES, "")
    glanced, reason = tried(bench, 80.0 / CONTENDER * 1.01, 90.0)  # however quick it may be once settled
    assert (len(glanced.samples), glanced.baseline_us) == (2, BASELINE_US)
    assert reason.startswith("At a glance, at ")
    slow, reason = tried(bench, 80.0, 100.0 / CLOSE * 1.01)
    assert (len(slow.samples), slow.ratio) == (SHORT_SAMPLES, pytest.approx(1.2 * CLOSE / 1.01))
    assert reason.startswith("Settled, at ")
    better, reason = tried(bench, 80.0, 99.0)
    assert (len(better.samples), better.ratio, reason) == (LONG_SAMPLES, pytest.approx(120 / 99), "")


@pytest.mark.parametrize("capped", [False, True])
def test_a_thorough_trial_is_timed_in_full_however_far_behind_it_is(bench: Any, capped: bool) -> None:
    bench.capped = capped
    tried(bench, 80.0, 100.0)  # the best so far
    slow, reason = tried(bench, 800.0, 1000.0, best_ratio=2.0, best_us=50.0, thorough=True)
    assert (len(slow.samples), reason) == (LONG_SAMPLES if capped else TRIAL.fewest, "")
    assert slow.ratio == pytest.approx((1.2 if capped else 1.25) / 10)


def test_the_burst_regime_and_the_finals_know_no_glance(bench: Any) -> None:
    bench.capped = True
    measured, _ = tried(bench, 50.0, 60.0, regime="burst")
    assert (measured.ratio, len(measured.samples)) == (2.0, TRIAL.fewest)
    measured, _ = tried(bench, 50.0, 60.0, effort="final")
    assert (measured.ratio, len(measured.samples)) == (2.0, 2 * PIECES)
    assert FINAL.fewest <= 2 * PIECES


def test_what_is_seen_of_the_cap_holds_for_the_trials_after(bench: Any) -> None:
    job = Job(Gemm(64, 64, 64), KERNEL, 0)
    watch: Any = Watch(50.0, caps=True)
    sample(job, bench, watch, (series("kernel"), 50.0), (Series(bench.baseline.replay), BASELINE_US))
    assert bench.capped
