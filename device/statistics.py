"""Medians and their intervals from order statistics: no assumption on how the times are distributed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Interval:
    """A median with the ends of its interval."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Half the interval's width over the median."""
        return (self.high - self.low) / 2 / abs(self.median) if self.median else math.inf


@lru_cache(maxsize=512)
def _rank(count: int, confidence: float) -> int:
    """The largest j for which (x_(j), x_(count + 1 - j)) covers the median with ``confidence`` or more; 0 if none does.

    Coverage is 1 - 2 P(B <= j - 1) with B binomial (count, 1/2): e.g. David and Nagaraja, "Order Statistics", 3rd
    edition, section 7.1. At 95 % six samples are the fewest that suffice.
    """
    below = 0.0
    for j in range(1, count // 2 + 1):
        below += math.comb(count, j - 1) / 2**count
        if 1 - 2 * below < confidence:
            return j - 1
    return count // 2


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """The median of ``samples`` and its interval; all of their range where they are too few for ``confidence``.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("median_interval needs at least one sample, but got none.")
    ordered = sorted(samples)
    count = len(ordered)
    middle = count // 2
    median = ordered[middle] if count % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    j = max(1, _rank(count, confidence))
    return Interval(median, ordered[j - 1], ordered[count - j])
