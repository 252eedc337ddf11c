"""A Gaussian process over a set of candidates: what trials so far say about those that are not tried yet.

The kernel is Matern 3/2 with a length scale for each feature (Rasmussen and Williams, Gaussian Processes for Machine
Learning, 2006, eq. 4.17): times have cliffs between neighbouring values of a knob, where a smoother process sees slopes
that go on. Length scales and noise are those of the greatest posterior density, under log-normal priors whose mean
grows with the root of the number of features (Hvarfner et al., Vanilla Bayesian Optimization Performs Great in High
Dimensions, 2024); the variance of the signal follows in closed form.

Trials that run count for the variance alone: their outcome is taken to be what is expected of them, which leaves the
mean as it is ("kriging believer", Ginsbourger et al. 2010). So the variance depends on no result, and is updated one
trial at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LENGTH, LENGTH_SPREAD = 0.7, 1.0
"""Of the prior on log length scales: its mean for a single feature of unit variance, and its standard deviation."""
NOISE, NOISE_SPREAD = 3e-2, 2.0
"""Of the prior on the noise: its median, in units of the signal's variance, and the deviation of its logarithm."""
_BOUNDS = (-4.0, 6.0)
_TINY = 1e-9


@dataclass(frozen=True)
class Scales:
    """``lengths`` [features]: log length scales; ``noise``: log variance of the noise over the signal's."""

    lengths: Floats
    noise: float

    @classmethod
    def prior(cls, features: int) -> Scales:
        """The middle of the prior."""
        return cls(np.full(features, _middle(features)), log(NOISE))

    def scaled(self, x: Floats) -> Floats:
        """``x`` [points, features] in units of the length scales."""
        return np.asarray(x * np.exp(-self.lengths))


def matern(a: Floats, b: Floats) -> Floats:
    """Correlation [points of a, points of b] of points [n, features] and [m, features] in units of length scales."""
    squared = np.maximum((a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2 * a @ b.T, 0.0)
    s = np.sqrt(3 * squared)
    return np.asarray((1 + s) * np.exp(-s))


def fit(x: Floats, y: Floats, start: Scales, steps: int) -> Scales:
    """Scales of the greatest posterior density found in ``steps`` of Rprop (Riedmiller 1994) from ``start``.

    Args:
        x: [n, features], each feature of about unit variance.
        y: [n], of mean 0 and variance 1.
        start: where to start; the scales of an earlier fit serve well.
        steps: evaluations of the density and its gradient, O(features * n**2 + n**3) each.
    """
    features = x.shape[1]
    apart = np.ascontiguousarray(((x[:, None, :] - x[None, :, :]) ** 2).transpose(2, 0, 1))
    at = np.append(start.lengths, start.noise)
    step, before = np.full(features + 1, 0.2), np.zeros(features + 1)
    best, found = np.inf, at.copy()
    for _ in range(steps):
        loss, slope = _loss(at, apart, y)
        if loss < best:
            best, found = loss, at.copy()
        turn = np.sign(slope * before)
        step = np.where(turn > 0, np.minimum(1.3 * step, 0.8), np.where(turn < 0, 0.5 * step, step))
        at = at - np.sign(slope) * step
        at[:-1] = np.clip(at[:-1], *_BOUNDS)
        at[-1] = np.clip(at[-1], -14.0, 0.0)
        before = slope
    return Scales(found[:-1], float(found[-1]))


def _middle(features: int) -> float:
    return LENGTH + 0.5 * log(features)


def _loss(at: Floats, apart: Floats, y: Floats) -> tuple[float, Floats]:
    """Negative log posterior density of scales, less constants, and its gradient; ``apart``: [features, n, n]."""
    features, n, _ = apart.shape
    squeeze, noise = np.exp(-2 * at[:-1]), float(np.exp(at[-1]))
    flat = apart.reshape(features, n * n)
    s = np.sqrt(3 * (squeeze @ flat)).reshape(n, n)
    falling = np.exp(-s)
    k = (1 + s) * falling + (noise + _TINY) * np.eye(n)
    lower = np.linalg.cholesky(k)
    half = np.linalg.inv(lower)
    inverse = half.T @ half
    a = inverse @ y
    variance = max(float(y @ a) / n, 1e-10)
    loss = 0.5 * n * log(variance) + float(np.log(np.diag(lower)).sum())
    by_k = 0.5 * (inverse - np.outer(a, a) / variance)
    slope = np.empty(features + 1)
    slope[:-1] = -2 * squeeze * (flat @ (by_k * (-3 / 2) * falling).ravel())
    slope[-1] = noise * np.trace(by_k)
    off = (at[:-1] - _middle(features)) / LENGTH_SPREAD
    off_noise = (float(at[-1]) - log(NOISE)) / NOISE_SPREAD
    slope[:-1] += off / LENGTH_SPREAD
    slope[-1] += off_noise / NOISE_SPREAD
    return loss + 0.5 * float(off @ off) + 0.5 * off_noise**2, slope


class _Table:
    """A matrix that gains rows and columns, with room to spare: most additions copy nothing but themselves."""

    def __init__(self, values: Floats) -> None:
        self._held = values
        self.now = values

    def add_rows(self, values: Floats) -> None:
        """``values`` [n, columns] below."""
        rows, columns = self.now.shape
        self._grow(rows + len(values), columns)[rows:] = values

    def add_columns(self, values: Floats) -> None:
        """``values`` [rows, n] to the right."""
        rows, columns = self.now.shape
        self._grow(rows, columns + values.shape[1])[:, columns:] = values

    def _grow(self, rows: int, columns: int) -> Floats:
        if rows > self._held.shape[0] or columns > self._held.shape[1]:
            old = self.now
            wide, high = self._held.shape[1], self._held.shape[0]
            if columns > wide:
                wide = columns + columns // 4
            if rows > high:
                high = rows + rows // 4
            self._held = np.empty((high, wide))
            self._held[: old.shape[0], : old.shape[1]] = old
        self.now = self._held[:rows, :columns]
        return self.now


class Posterior:
    """What is believed about candidates, given trials; both may be added to.

    Args:
        scales: the kernel's.
        candidates: [n, features].
        tried: [m, features], the trials that count for the variance.
    """

    def __init__(self, scales: Scales, candidates: Floats, tried: Floats) -> None:
        self._scales = scales
        self._candidates = scales.scaled(candidates)
        self._tried = scales.scaled(tried)
        m = len(tried)
        k = matern(self._tried, self._candidates)
        own = matern(self._tried, self._tried) + self._nugget * np.eye(m)
        half = np.linalg.inv(np.linalg.cholesky(own))
        v = half @ k
        self._own, self._half, self._k, self._v = _Table(own), _Table(half), _Table(k), _Table(v)
        self._left = 1 - (v * v).sum(0)

    @property
    def _nugget(self) -> float:
        return float(np.exp(self._scales.noise)) + _TINY

    def add_candidates(self, x: Floats) -> None:
        """More candidates [n, features], after those there are."""
        new = self._scales.scaled(x)
        k = matern(self._tried, new)
        v = self._half.now @ k
        self._candidates = np.concatenate([self._candidates, new])
        self._k.add_columns(k)
        self._v.add_columns(v)
        self._left = np.concatenate([self._left, 1 - (v * v).sum(0)])

    def add_trials(self, x: Floats) -> None:
        """More trials [n, features] for the variance, after those there are."""
        new = self._scales.scaled(x)
        n, m = len(new), len(self._tried)
        k = matern(new, self._candidates)
        between = matern(self._tried, new)
        inner = matern(new, new) + self._nugget * np.eye(n)
        across = self._half.now @ between
        corner = np.linalg.inv(np.linalg.cholesky(inner - across.T @ across))
        v = corner @ (k - across.T @ self._v.now)
        below = -corner @ across.T @ self._half.now
        self._half.add_columns(np.zeros((m, n)))
        self._half.add_rows(np.concatenate([below, corner], axis=1))
        self._own.add_columns(between)
        self._own.add_rows(np.concatenate([between.T, inner], axis=1))
        self._tried = np.concatenate([self._tried, new])
        self._k.add_rows(k)
        self._v.add_rows(v)
        self._left = self._left - (v * v).sum(0)

    def mean(self, known: npt.NDArray[np.intp], y: Floats) -> tuple[Floats, float]:
        """Means of the candidates and the signal's variance, where the trials numbered ``known`` gave ``y``."""
        weights = np.linalg.solve(self._own.now[np.ix_(known, known)], y)
        every = np.zeros(len(self._tried))  # with weight 0 where nothing is known yet: no row is copied
        every[known] = weights
        return every @ self._k.now, max(float(y @ weights) / len(y), 1e-10)

    def deviation(self) -> Floats:
        """Standard deviations of the candidates, in units of the signal's."""
        return np.asarray(np.sqrt(np.maximum(self._left, _TINY)))


def expected_improvement(best: float, mean: Floats, deviation: Floats) -> Floats:
    """E max(0, best - X) for normal X (Mockus 1975)."""
    u = (best - mean) / deviation
    density = np.exp(-0.5 * u * u) / sqrt(2 * np.pi)
    return np.asarray(deviation * (u * below(u) + density))


def below(u: Floats) -> Floats:
    """The normal distribution function, to 1e-7 (Abramowitz and Stegun, 7.1.26)."""
    x = np.abs(u) / sqrt(2)
    t = 1 / (1 + 0.3275911 * x)
    terms = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * terms * np.exp(-x * x)
    return np.asarray(np.where(u >= 0, 1 - tail, tail))
