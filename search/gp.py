"""The search that learns: expected improvement under a Gaussian process, which starts from the cost estimate.

The model judges a pool of candidates, since a space may have millions: random ones, drawn anew each time the scales are
fitted, and always the neighbours of the leaders, so that the search ends as a local one. Where each candidate's cost is
estimated, which takes longer than drawing it, the better half of the pool stays. Where nothing quicker was found for a
while, every second candidate is one within two steps of the leader, as if the model were less sure: two knobs that help
only together are what it is wrong about. How slow a slow kernel is says little about the quick ones, so slow times are
cut off; a failure counts as slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from gemmtune.search.beliefs import Beliefs, cut, fitted, unit_of
from gemmtune.search.features import Features
from gemmtune.search.gaussian import Scales
from gemmtune.search.start import START, WARM, diverse, known_points, sample, spread
from gemmtune.search.strategy import Result, Strategy
from gemmtune.space.space import Space

KNOWN = 8
"""Points that families name, tried first."""
FIRST = 20
"""Points that are tried first where nothing is estimated: more than are in flight before the first result is known."""
POOL = 4096
"""Candidates drawn at each fit where features cost next to nothing."""
FRESH = 256
"""The same where each one's cost is estimated."""
FIRST_FIT, REFIT = 8, 1.2
"""Results before the first fit, and the factor by which they grow from one fit to the next."""
MODEL = 4
"""Results with a time before the model chooses."""
STALE, BETTER = 9, 0.002
"""Results without one that is quicker by this fraction, after which two steps from the leader are looked at."""
WIDE = 3.0
"""Factor of the model's deviation there."""
GAIN = 0.01
"""What a search with a confidence goes on for: being quicker by this fraction."""
ENOUGH = 24
"""Results before it may end."""


class Gp(Strategy):
    """A Gaussian process and its expected improvement; see the module.

    Args:
        confidence: if given, proposals end once the model gives at least this probability to no candidate being more
            than 1 % (:data:`GAIN`) quicker than the best.
    """

    name = "gp"

    def __init__(
        self, space: Space, seed: int, budget: int, warm: Sequence[int] = (), confidence: float | None = None
    ) -> None:
        super().__init__(space, seed)
        self._confidence = confidence
        self._ended = False
        self._features = Features(space)
        self._drawn = sample(space, self.rng, None if self._features.estimable else POOL)
        self._unit = unit_of(self._features.rows(self._drawn))
        self._start = deque(self._first_points(warm, budget))
        self._scales = Scales.prior(len(self._unit[0]))
        self._next_fit = MODEL
        self._tried: list[int] = []
        self._failed: dict[int, None] = {}
        self._beliefs: Beliefs | None = None
        self._learned = False
        self._goal = np.inf
        self._idle = 0
        self._turn = 0

    def _first_points(self, warm: Sequence[int], budget: int) -> list[int]:
        borrowed = diverse(self.space, warm, WARM)
        if not self._features.estimable:
            rows = (self._features.rows(self._drawn) - self._unit[0]) / self._unit[1]
            return list(
                dict.fromkeys([*borrowed, *(self._drawn[i] for i in spread(rows, min(FIRST, budget), self.rng))])
            )
        costs = self._features.estimated(self._drawn)
        liked = [self._drawn[int(i)] for i in np.argsort(costs, kind="stable")]
        estimated = diverse(self.space, liked, min(START, budget))
        return list(dict.fromkeys([*borrowed, *known_points(self.space, KNOWN), *estimated]))

    def propose(self, n: int) -> list[int]:
        """As every strategy; nothing any more once a search with a confidence has come to its end."""
        if self._confidence is not None and not self._ended:
            self._ended = self.hope() <= 1 - self._confidence
        return [] if self._ended else super().propose(n)

    def hope(self) -> float:
        """What the model gives the chance of some candidate being over 1 % quicker than the best, at most.

        It is 1 while too little is known, and knows of the pool alone: a space that was hardly sampled may hold what
        the model cannot imagine.
        """
        if len(self._scores) < ENOUGH:
            return 1.0
        return self._current().hope(GAIN)

    def _next(self) -> int:
        while self._start:
            index = self._start.popleft()
            if index not in self.seen:
                return index
        if len(self._scores) < MODEL:
            return self._any_unseen()
        beliefs = self._current()
        self._turn += 1
        chosen = beliefs.choose(self._near_leader(), WIDE) if self._stale and self._turn % 2 == 0 else None
        if chosen is None:
            chosen = beliefs.choose()
        return self._any_unseen() if chosen is None else chosen

    @property
    def _stale(self) -> bool:
        return self._idle > STALE

    def _near_leader(self) -> list[int]:
        """What lies within two steps of the leader and was not tried."""
        one = self.space.neighbours(self._leaders()[0])
        two = [index for neighbour in one for index in self.space.neighbours(neighbour)]
        return [index for index in dict.fromkeys([*one, *two]) if index not in self.seen]

    def _pending(self, index: int) -> None:
        self._tried.append(index)
        if self._beliefs is not None:
            self._beliefs.tries(index)

    def _learn(self, result: Result) -> None:
        if result.objective is not None:
            self._failed.pop(result.index, None)
            if result.objective < self._goal:
                self._goal, self._idle = result.objective * (1 - BETTER), -1
        elif result.outcome != "infrastructure":  # which says nothing about the configuration
            self._failed[result.index] = None
        self._idle += 1
        self._learned = True

    def _current(self) -> Beliefs:
        """The model with every result in it."""
        if self._beliefs is not None and not self._learned:
            return self._beliefs
        scores = {index: float(np.log(score)) for index, score in self._scores.items()}
        times = cut(scores, list(self._failed))
        if self._beliefs is None or len(times) >= self._next_fit:
            self._beliefs = self._renewed(times)
        near = [n for index in self._leaders() for n in self.space.neighbours(index) if n not in self.seen]
        self._beliefs.add([*near, *(self._near_leader() if self._stale else ())])
        self._beliefs.learn(times, min(scores.values()))
        self._learned = False
        return self._beliefs

    def _renewed(self, times: dict[int, float]) -> Beliefs:
        """A model with scales fitted to ``times``, about a new pool."""
        self._next_fit = max(len(times) + 4, int(len(times) * REFIT), FIRST_FIT)
        if len(times) >= FIRST_FIT:
            self._scales = fitted(self._features, self._unit, times, self._scales)
        pool = self._drawn
        if self._beliefs is not None:
            pool = self._beliefs.quicker_half() if self._features.estimable else []
            pool += sample(self.space, self.rng, FRESH if self._features.estimable else POOL)
        pool = [index for index in dict.fromkeys(pool) if index not in self.seen]
        return Beliefs(self._features, self._unit, self._scales, pool, self._tried)
