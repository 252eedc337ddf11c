"""What a search believes of the candidates it may try next: their times, by the estimate and by a Gaussian process.

Times are natural logarithms. A belief is a line in the estimated time, and on it the process, which learns what the
line leaves over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gemmtune.search.features import Features
from gemmtune.search.gaussian import Floats, Posterior, Scales, below, expected_improvement, fit

FITTED = 120
"""Trials that the scales are fitted to: the quicker half of them the quickest there are, the others spread."""
STEPS = 15
"""Steps of each fit."""
TRUST, CERTAINTY = 0.5, 0.5
"""Slope of the measured over the estimated time before any result, and how sure of it: as sure as the results make one
whose estimates have, together, this much variance (a dozen that differ by 20 % each)."""
SLOWEST = 2.0
"""Times are cut off at the best and so many times the median's distance from it.

The more a search has found, the nearer its median is to the best: cut off there, half of its trials would look alike.
"""


class Beliefs:
    """Beliefs about candidates of one space, under fixed scales of the process.

    Args:
        features: of the space.
        unit: center and width of each feature.
        scales: of the process, with features in these units.
        candidates: indices of what may be tried.
        tried: indices of what was or is being tried.
    """

    def __init__(
        self,
        features: Features,
        unit: tuple[Floats, Floats],
        scales: Scales,
        candidates: Sequence[int],
        tried: Sequence[int],
    ) -> None:
        self._features = features
        self._unit = unit
        self.candidates = list(candidates)
        self._columns = {index: column for column, index in enumerate(self.candidates)}
        self._rows = {index: row for row, index in enumerate(tried)}
        self._estimated = features.estimated(self.candidates)
        self._open = np.array([index not in self._rows for index in self.candidates], bool)
        self._posterior = Posterior(scales, self._at(self.candidates), self._at(tried))
        self._mean = np.zeros(len(self.candidates))
        self._spread = 1.0
        self._best = 0.0

    def _at(self, indices: Sequence[int]) -> Floats:
        return in_units(self._features, self._unit, indices)

    def add(self, indices: Sequence[int]) -> None:
        """More candidates; those that are known already stay."""
        new = [index for index in dict.fromkeys(indices) if index not in self._columns]
        if not new:
            return
        self._columns |= {index: len(self.candidates) + i for i, index in enumerate(new)}
        self.candidates += new
        self._estimated = np.append(self._estimated, self._features.estimated(new))
        self._open = np.append(self._open, [index not in self._rows for index in new])
        self._posterior.add_candidates(self._at(new))

    def tries(self, index: int) -> None:
        """``index`` is being tried from now on."""
        self._rows[index] = len(self._rows)
        self._posterior.add_trials(self._at([index]))
        if index in self._columns:
            self._open[self._columns[index]] = False

    def learn(self, times: Mapping[int, float], best: float) -> None:
        """Believe in ``times``, a value for each of the trials that are through; ``best`` is the quickest."""
        y = np.fromiter(times.values(), float)
        slope, rest = without_estimate(self._features, times)
        middle, spread = float(rest.mean()), max(float(rest.std()), 1e-6)
        rows = np.array([self._rows[index] for index in times], np.intp)
        mean, variance = self._posterior.mean(rows, (rest - middle) / spread)
        self._spread = spread * float(np.sqrt(variance))
        self._mean = middle + spread * mean + slope * self._estimated
        self._best = min(best, float(y.min()))

    def choose(self, among: Sequence[int] | None = None, wide: float = 1.0) -> int | None:
        """The untried candidate whose expected improvement is the greatest; None where there is none.

        ``among``: of these alone; ``wide`` multiplies the model's deviations.
        """
        open_ = self._open
        if among is not None:
            open_ = np.zeros_like(open_)
            columns = [self._columns[index] for index in among if index in self._columns]
            open_[columns] = self._open[columns]
        if not open_.any():
            return None
        gain = expected_improvement(self._best, self._mean, wide * self._spread * self._posterior.deviation())
        return self.candidates[int(np.where(open_, gain, -1.0).argmax())]

    def hope(self, gain: float) -> float:
        """At most this is the chance that some untried candidate is quicker than the best by the fraction ``gain``.

        It is the sum of their single chances, which bounds that of any (Boole).
        """
        goal = self._best + np.log1p(-gain)
        chances = below((goal - self._mean) / (self._spread * self._posterior.deviation()))
        return min(1.0, float(chances[self._open].sum()))

    def quicker_half(self) -> list[int]:
        """The half of the candidates that is believed to be the quicker one, the quickest first."""
        order = np.argsort(self._mean, kind="stable")[: len(self.candidates) // 2]
        return [self.candidates[int(i)] for i in order]


def in_units(features: Features, unit: tuple[Floats, Floats], indices: Sequence[int]) -> Floats:
    """[configurations, features] less their center, over their width."""
    center, width = unit
    return (features.rows(indices) - center) / width


def unit_of(rows: Floats) -> tuple[Floats, Floats]:
    """Center and width of each feature; what hardly varies in ``rows`` keeps its own scale."""
    deviation = rows.std(0)
    return rows.mean(0), np.where(deviation > 1e-6, deviation, 1.0)


def cut(times: Mapping[int, float], failed: Sequence[int]) -> dict[int, float]:
    """``times`` with slow ones cut off, and ``failed`` trials as slow as the slowest then are."""
    quickest, median = min(times.values()), float(np.median(list(times.values())))
    cap = quickest + SLOWEST * max(median - quickest, 1e-3)
    return {index: min(time, cap) for index, time in times.items()} | dict.fromkeys(failed, cap)


def without_estimate(features: Features, times: Mapping[int, float]) -> tuple[float, Floats]:
    """Slope of ``times`` over the estimated ones, drawn to :data:`TRUST`, and what they are less the estimated part."""
    y, estimated = np.fromiter(times.values(), float), features.estimated(list(times))
    if not features.estimable:
        return 0.0, y
    off = estimated - estimated.mean()
    slope = (float(off @ (y - y.mean())) + TRUST * CERTAINTY) / (float(off @ off) + CERTAINTY)
    slope = min(max(slope, 0.0), 1.5)
    return slope, y - slope * estimated


def fitted(features: Features, unit: tuple[Floats, Floats], times: Mapping[int, float], start: Scales) -> Scales:
    """Scales fitted to ``times``, from ``start``."""
    _, rest = without_estimate(features, times)
    order = np.argsort(np.fromiter(times.values(), float), kind="stable")
    if len(order) > FITTED:
        half = FITTED // 2
        others = np.linspace(half, len(order) - 1, FITTED - half).round().astype(np.intp)
        order = np.append(order[:half], order[others])
    part = rest[order]
    indices = list(times)
    rows = in_units(features, unit, [indices[int(i)] for i in order])
    return fit(rows, (part - part.mean()) / max(float(part.std()), 1e-6), start, STEPS)
