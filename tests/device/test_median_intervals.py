"""Intervals of the median: ordered, conservative, and as narrow as order statistics allow."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.device.statistics import _rank, median_interval


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=60))
def test_the_interval_holds_the_median_and_both_are_order_free(samples: list[float]) -> None:
    interval = median_interval(samples)
    assert interval.low <= interval.median <= interval.high
    assert interval == median_interval(sorted(samples, reverse=True))
    assert interval.low in samples
    assert interval.high in samples


@pytest.mark.parametrize("count", range(6, 200))
def test_coverage_is_at_least_what_is_promised_and_no_wider_interval_is_needed(count: int) -> None:
    def coverage(j: int) -> float:
        return 1 - 2 * sum(math.comb(count, i) for i in range(j)) / 2**count

    j = _rank(count, 0.95)
    assert j >= 1
    assert coverage(j) >= 0.95
    assert j == count // 2 or coverage(j + 1) < 0.95


def test_few_samples_give_their_range() -> None:
    assert median_interval([3.0]).high == 3.0
    interval = median_interval([1, 2, 3, 4, 5])
    assert (interval.low, interval.median, interval.high) == (1, 3, 5)
    assert median_interval([1, 2, 3, 10]).median == 2.5


def test_the_interval_covers_the_true_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        interval = median_interval(list(rng.lognormal(size=12)))
        hits += interval.low <= 1.0 <= interval.high
    assert hits / 2000 >= 0.95


def test_no_samples_no_median() -> None:
    with pytest.raises(ValueError, match="at least one"):
        median_interval([])
