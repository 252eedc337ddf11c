"""Times on a real GPU: complete, interleaved with the baseline, and the same for the same kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gemmtune.device.base import Job, Outcome
from gemmtune.space.gemm import Gemm

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("regime", "cache"), [("sustained", "cold"), ("sustained", "warm"), ("burst", "cold")])
def test_a_measurement_is_whole(engine: Any, planted: Callable[..., Job], regime: str, cache: str) -> None:
    report = engine.run(planted(Gemm(512, 512, 256), regime=regime, cache=cache))
    assert report.outcome in (Outcome.CORRECT, Outcome.UNSTABLE), report.detail
    m = report.measurement
    assert m is not None
    assert 0 < m.us_low <= m.us <= m.us_high
    assert 0 < m.ratio_low <= m.ratio <= m.ratio_high
    assert m.baseline_us > 0
    assert len(m.samples) == len(m.baseline_samples) >= 6
    assert not m.estimated
    assert {"load", "verify", "measure"} <= set(report.seconds)


def test_the_same_kernel_twice_takes_the_same_time(engine: Any, planted: Callable[..., Job]) -> None:
    job = planted(Gemm(512, 512, 512), effort="final")
    first, second = engine.compare([job, job])
    assert first.outcome is second.outcome is Outcome.CORRECT
    assert first.measurement.us == pytest.approx(second.measurement.us, rel=0.2)
    assert first.measurement.ratio == pytest.approx(second.measurement.ratio, rel=0.2)
    assert first.measurement.baseline_samples == second.measurement.baseline_samples


def test_clear_losers_are_abandoned(engine: Any, planted: Callable[..., Job]) -> None:
    job = planted(Gemm(512, 512, 512))
    slow = engine.run(replace(job, best_us=0.01))
    assert slow.outcome is Outcome.ABANDONED
    assert slow.verification.passed
    beaten = engine.run(replace(job, best_ratio=1000.0))
    assert beaten.outcome is Outcome.ABANDONED
    assert beaten.measurement.ratio_high < 330


def test_a_kernel_that_goes_wrong_only_back_to_back_is_caught(engine: Any, planted: Callable[..., Job]) -> None:
    calls = "__device__ unsigned calls;"
    spoil = "if (first && atomicAdd(&calls, 1u) > 40u) acc += 100.f;"
    report = engine.run(planted(Gemm(128, 128, 128), globals_=calls, spoil=spoil))
    assert report.outcome is Outcome.WRONG
    assert "back to back" in report.detail


def test_compare_keeps_order_and_survives_a_wrong_kernel(engine: Any, planted: Callable[..., Job]) -> None:
    small, other = Gemm(128, 128, 64), Gemm(160, 96, 64, "fp16")
    jobs = [planted(small), planted(small, spoil="acc += 1.f;"), planted(other)]
    outcomes = [report.outcome for report in engine.compare(jobs)]
    assert outcomes[1] is Outcome.WRONG
    assert {outcomes[0], outcomes[2]} <= {Outcome.CORRECT, Outcome.UNSTABLE}
    assert engine.compare([]) == []


@pytest.mark.parametrize("shape", [(1, 28672, 8192), (8192, 8192, 8192)])
def test_large_problems_fit(engine: Any, planted: Callable[..., Job], shape: tuple[int, int, int]) -> None:
    report = engine.run(planted(Gemm(*shape, "bf16"), best_us=1.0))  # the probe is slow: one launch is enough
    assert report.outcome is Outcome.ABANDONED, report.detail
    assert report.verification.passed


@pytest.mark.parametrize("epilogue", ["identity", "alpha_beta", "bias"])
@pytest.mark.parametrize("out", ["bf16", "fp32", "fp16"])
def test_every_baseline_can_be_captured(engine: Any, planted: Callable[..., Job], epilogue: str, out: str) -> None:
    report = engine.run(planted(Gemm(96, 80, 64, "bf16", out, "nn", epilogue)))
    assert report.outcome in (Outcome.CORRECT, Outcome.UNSTABLE), report.detail
