"""When samples have more than one mode, and when a measurement is no answer; no GPU needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.device.base import Measurement
from gemmtune.device.cuda.timing import Stopwatch, disturbance
from gemmtune.device.statistics import _critical_dip, _unimodal_within, is_multimodal, median_interval

sizes = st.integers(6, 48)
seeds = st.integers(0, 2**32 - 1)


def dip(samples: list[float]) -> float:
    low, high = 0.0, 0.5
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if _unimodal_within(samples, middle) else (middle, high)
    return high


# ------------------------------------------------------------------------------------------------------- the dip itself


@given(st.integers(2, 40))
def test_evenly_spread_samples_have_the_least_dip_there_is(count: int) -> None:
    assert dip([float(i) for i in range(count)]) == pytest.approx(1 / (2 * count))


@given(st.integers(1, 20), st.integers(1, 20))
def test_two_points_dip_by_half_the_lesser_share(few: int, many: int) -> None:
    """For k of n samples at one point and the rest at another it is min(k, n - k) / 2n, by hand."""
    assert dip([1.0] * few + [2.0] * many) == pytest.approx(min(few, many) / (2 * (few + many)))


@pytest.mark.parametrize(
    ("samples", "expected"),
    [  # worked out by hand from the definition: the greatest distance between the function and its best unimodal fit
        ([0.0, 1.0, 2.0, 10.0, 11.0, 12.0], 1 / 5),  # the line from (0, d) to (10, 1/2 + d) passes 2 at 1/2 - d
        ([0.0, 1.0, 1.0, 1.0, 2.0], 1 / 10),
        ([5.0], 0.0),
    ],
)
def test_known_dips(samples: list[float], expected: float) -> None:
    assert dip(samples) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.integers(-50, 50), min_size=6, max_size=24), st.floats(0.01, 100), st.floats(-100, 100))
def test_scale_shift_order_and_direction_do_not_matter(numbers: list[int], scale: float, shift: float) -> None:
    samples = [float(number) for number in numbers]
    expected = dip(samples)
    assert dip([-x for x in reversed(samples)]) == pytest.approx(expected, abs=1e-9)
    assert dip([scale * x + shift for x in samples]) == pytest.approx(expected, abs=1e-6)


# --------------------------------------------------------------------------------------------------- what it fires on


@given(sizes, st.floats(0.2, 5), st.floats(0, 1), st.booleans())
def test_it_never_fires_on_the_quantiles_of_a_unimodal_distribution(
    count: int, shape: float, mode: float, peaked: bool
) -> None:
    """Distribution functions that are convex below the mode and concave above it, by construction."""
    places = (np.arange(count) + 0.5) / count
    power = 1 + shape if peaked else 1.0
    below = mode * (1 - (1 - np.minimum(places / max(mode, 1e-9), 1)) ** power)
    above = (1 - mode) * np.maximum((places - mode) / max(1 - mode, 1e-9), 0) ** power
    assert not is_multimodal((below + above).tolist())


@pytest.mark.parametrize("count", [6, 8, 12, 24, 40])
@pytest.mark.parametrize("kind", ["normal", "uniform", "exponential", "laplace", "lognormal", "standard_cauchy"])
def test_it_fires_on_unimodal_noise_no_more_often_than_it_says(count: int, kind: str) -> None:
    rng = np.random.default_rng(3)
    draws = 2000 if count <= 12 else 200
    fired = sum(is_multimodal(getattr(rng, kind)(size=count).tolist()) for _ in range(draws))
    assert fired <= max(1, 3 * draws // 1000)


@given(sizes, seeds, st.floats(1.0, 1e6))
def test_it_never_fires_on_outliers_of_whatever_size(count: int, seed: int, far: float) -> None:
    """Quantiles of a normal, and up to a sixth of the samples far off, where the median does not notice them."""
    rng = np.random.default_rng(seed)
    samples = 1 + 0.001 * np.sort(rng.normal(size=4001))[:: 4001 // count][:count]
    samples[: count // 6] += far
    assert not is_multimodal(samples.tolist())


@given(sizes.filter(lambda n: n % 2 == 0), st.floats(0.02, 1.0), seeds)
def test_it_fires_on_two_levels_of_equal_weight(count: int, apart: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = 1 + 0.02 * apart * rng.random(count)
    samples[: count // 2] += apart
    rng.shuffle(samples)
    assert is_multimodal(samples.tolist())


def test_too_few_samples_say_nothing() -> None:
    assert not is_multimodal([1.0, 1.0, 2.0, 2.0])
    assert not is_multimodal([])


def test_the_critical_dip_is_that_of_uniform_samples() -> None:
    """Of 400 uniform samples of 12, the one-in-a-hundred dip lies below the critical one, and not far below."""
    rng = np.random.default_rng(8)
    dips = sorted(dip(rng.random(12).tolist()) for _ in range(400))
    assert dips[395] < _critical_dip(12) < 1.35 * dips[395]


# ------------------------------------------------------------------------------------------------- measurements


def measured(found: list[float], throttle: str = "power cap") -> Measurement:
    interval = median_interval(found)
    ours = tuple(100.0 for _ in found)
    theirs = tuple(100.0 * ratio for ratio in found)
    return Measurement(
        100, 100, 100, 100.0, interval.median, interval.low, interval.high, ours, theirs, throttle=throttle
    )


STEP = [0.634, 0.64, 0.634, 0.639, 0.635, 0.641, 0.635, 0.572, 0.574, 0.577, 0.573, 0.577]  # recorded on an H200
ORDER = [1.0, 1.05, 1.001, 1.051, 0.999, 1.049, 1.002, 1.05, 1.0, 1.052, 1.001, 1.05]
CALM = [1.0, 1.002, 0.999, 1.001, 1.003, 0.998, 1.0, 1.001, 0.999, 1.002, 1.0, 1.001]


def test_a_step_half_way_is_no_answer_and_is_told_with_its_levels() -> None:
    assert disturbance(measured(STEP)) == (
        "Its ratio to the baseline has two levels over 12 samples, about 0.575 and 0.637."
    )


def test_two_levels_that_are_the_order_of_running_are_an_answer() -> None:
    assert disturbance(measured(ORDER)) == ""
    assert "two levels" in disturbance(measured(ORDER[::2] + ORDER[1::2]))  # the same in halves of the time


@settings(max_examples=50)
@given(seeds, st.floats(0.0001, 0.0198))
def test_levels_too_near_to_matter_are_an_answer(seed: int, apart: float) -> None:
    rng = np.random.default_rng(seed)
    found = (1 + 0.00001 * rng.random(12) + apart * (np.arange(12) % 12 >= 6)).tolist()
    assert disturbance(measured(found)) == ""


@pytest.mark.parametrize(
    ("throttle", "hot"),
    [
        ("", False), ("power cap", False), ("hardware slowdown, power brake", False), ("thermal (software)", True),
        ("power cap, thermal (hardware)", True),
    ],
)  # fmt: skip
def test_heat_is_a_disturbance_and_a_power_cap_is_none(throttle: str, hot: bool) -> None:
    said = disturbance(measured(CALM, throttle))
    assert bool(said) == hot
    assert not hot or (said.startswith("The GPU ran too hot") and "power cap" not in said)


def test_a_ratio_that_varies_wildly_is_no_answer() -> None:
    rng = np.random.default_rng(0)
    assert "varies by" in disturbance(measured((1 + 0.5 * rng.random(12)).tolist()))


@given(st.lists(st.floats(0.5, 2), min_size=1, max_size=5))
def test_few_samples_are_judged_by_their_spread_alone(found: list[float]) -> None:
    said = disturbance(measured(found))
    assert said == "" or "varies by" in said


def test_what_held_the_clock_down_at_any_reading_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = SimpleNamespace(cuda=SimpleNamespace(Event=object))
    monkeypatch.setattr("gemmtune.device.cuda.timing.require_cupy", lambda: fake)
    said = iter(["power cap", "", "thermal (software), power cap", "power cap"])
    monitor: Any = SimpleNamespace(clock_mhz=lambda: 1500.0, throttle=lambda: next(said))
    watch = Stopwatch(None, "sustained", monitor)
    for _ in range(4):
        watch._read_clock()
    assert watch.throttle == "power cap, thermal (software)"
