"""Medians, their intervals, and whether samples have one mode: no assumption on how the times are distributed."""

from __future__ import annotations

import math
from collections import Counter
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


FEWEST_FOR_MODES = 6
"""Samples below which nothing can be said about their modes."""


def is_multimodal(samples: Sequence[float]) -> bool:
    """Whether ``samples`` come from more than one mode: Hartigan's dip test, at a significance of 0.1 %.

    The dip is the least distance between the samples' distribution function and that of any unimodal distribution; the
    samples are taken for multimodal where it is larger than it is for one in a thousand samples of a uniform
    distribution, which of the unimodal ones dips the most: J. A. Hartigan and P. M. Hartigan, "The Dip Test of
    Unimodality", Annals of Statistics 13 (1985), 70-84. Tails and outliers of any size leave it alone. Two modes are
    seen where the lesser one holds over a third of a dozen samples: with less, their median lies in the greater one.
    """
    return len(samples) >= FEWEST_FOR_MODES and not _unimodal_within(samples, _critical_dip(len(samples)))


def _critical_dip(count: int) -> float:
    """The dip that one in a thousand uniform samples of ``count`` surpasses.

    Fitted to 200,000 simulated samples each of 6 to 60, within 2 %: 0.2193 for 6, 0.1683 for 12, 0.1034 for 40.
    """
    return 1 / (1.33 * math.sqrt(count) + 1.28)


def _unimodal_within(samples: Sequence[float], distance: float) -> bool:
    """Whether some unimodal distribution function stays within ``distance`` of that of ``samples``.

    Such a function is convex below its mode and concave above it, and may jump at the mode, which may be taken to be
    one of the samples. One exists where the least value that the convex part can have just below the mode is no larger
    than the greatest that the concave part can have there.
    """
    count = len(samples)
    steps = sorted(Counter(samples).items())
    upto, total = [], 0
    for _, times in steps:
        total += times
        upto.append(total / count)
    below = [0.0, *upto[:-1]]
    least = _least_below([x for x, _ in steps], below, upto, distance)
    # turned by half a circle, the concave part is a convex one
    turned = _least_below([-x for x, _ in reversed(steps)], [1 - f for f in reversed(upto)],
                          [1 - f for f in reversed(below)], distance)  # fmt: skip
    return any(low + high <= 1 + 1e-12 for low, high in zip(least, reversed(turned), strict=True))


def _least_below(x: Sequence[float], below: Sequence[float], upto: Sequence[float], distance: float) -> list[float]:
    """For a mode at each of ``x``: the least value just below it of a convex increasing function within ``distance``.

    The function sought passes each x before the mode no higher than ``below + distance`` and no lower than
    ``upto - distance``. From points i and j it has to rise at least as the line from the top of i to the bottom of j
    does. Infinite where there is none.
    """
    out: list[float] = []
    for mode, at in enumerate(x):
        least = below[mode] - distance
        if mode:
            least = max(least, upto[mode - 1] - distance)
        for j in range(1, mode):
            bottom = upto[j] - distance
            steepest = max((bottom - below[i] - distance) / (x[j] - x[i]) for i in range(j))
            least = max(least, bottom + steepest * (at - x[j]))
        out.append(least)
        if least > below[mode] + distance + 1e-12:
            out[-1] = math.inf
        if max(least, upto[mode] - distance) > below[mode] + distance + 1e-12:  # it cannot pass this x at all
            return out + [math.inf] * (len(x) - mode - 1)
    return out
