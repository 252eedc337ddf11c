"""Where a study starts: points its families name, configurations that the cost estimate likes and that differ, and
random ones; where nothing is estimated, such as lie far from each other.

A warm start must be diverse: near-duplicates teach a sampler less than a cold start does, while seeds that differ in
three knobs or more bring it ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemmtune.search.gaussian import Floats
from gemmtune.space.estimate import estimate
from gemmtune.space.space import Space

START = 12
"""Starting points: with those that families name, more than are in flight before the first result is known."""
WARM = 5
"""Configurations taken over from a study under other circumstances."""
SAMPLE = 1024
"""Configurations a family whose cost is estimated (some tens of microseconds each)."""
DRAWN = 256
"""Random points of which the one that lies farthest from the others is taken."""
APART = 3
"""Knobs in which two estimated starting points differ at least."""


def starting_points(space: Space, n: int, rng: np.random.Generator) -> list[int]:
    """``n`` distinct indices (all of them in a smaller space): estimated and random ones in turn.

    They are random alone where nothing is estimated, as in what another tool recorded.
    """
    n = min(n, len(space))
    if not all(family.estimable for family in space.families):
        return [int(i) for i in rng.choice(len(space), size=n, replace=False)]
    estimated = _estimated(space, n - n // 2, rng)
    chosen = dict.fromkeys(estimated[:1])
    rest = iter(estimated[1:])
    while len(chosen) < n:
        chosen.setdefault(int(rng.integers(len(space))))
        following = next(rest, None)
        if following is not None and len(chosen) < n:
            chosen.setdefault(following)
    return list(chosen)


def known_points(space: Space, n: int) -> list[int]:
    """At most ``n`` of the points that the families themselves name for this problem.

    In turn the next as the family ranks them and the next by estimated cost: neither knows best for every size.
    """
    named: list[int] = []
    costs: list[tuple[float, int]] = []
    for family in space.families:
        for configuration in family.starting_points(space.problem, space.gpu):
            named.append(space.index(configuration))
            costs.append((estimate(space.problem, configuration, family, space.gpu).us, named[-1]))
    turns = zip(named, (index for _, index in sorted(costs)), strict=True)
    return list(dict.fromkeys(index for pair in turns for index in pair))[:n]


def _estimated(space: Space, n: int, rng: np.random.Generator) -> list[int]:
    """The best ``n`` of a random sample of every family by estimated time, each apart from all before it."""
    by_name = {family.name: family for family in space.families}
    costs: list[tuple[float, int]] = []
    for index in sample(space, rng, None):
        configuration = space[index]
        cost = estimate(space.problem, configuration, by_name[configuration.family], space.gpu)
        costs.append((cost.us, index))
    return diverse(space, [index for _, index in sorted(costs)], n)


def diverse(space: Space, ranked: Sequence[int], n: int) -> list[int]:
    """The first ``n`` of ``ranked`` that lie apart from all chosen before them."""
    chosen: list[int] = []
    for index in ranked:
        if len(chosen) == n:
            break
        if all(_distance(space, index, other) >= APART for other in chosen):
            chosen.append(index)
    return chosen


def spread(rows: Floats, n: int, rng: np.random.Generator) -> list[int]:
    """``n`` of ``rows`` [points, features] that lie far apart, as their numbers: each the farthest of :data:`DRAWN`
    random ones from all before it (Mitchell 1991). The farthest of all would be corners, one after another.
    """
    chosen = [int(rng.integers(len(rows)))]
    while len(chosen) < min(n, len(rows)):
        drawn = rng.integers(len(rows), size=DRAWN)
        apart = ((rows[drawn][:, None] - rows[chosen][None]) ** 2).sum(2).min(1)
        chosen.append(int(drawn[int(apart.argmax())]))
    return list(dict.fromkeys(chosen))


def sample(space: Space, rng: np.random.Generator, n: int | None) -> list[int]:
    """At most ``n`` random indices, or up to :data:`SAMPLE` of every family; sorted, each once."""
    ranges = [(0, len(space))] if n is not None else _ranges(space)
    return sorted({i for low, high in ranges for i in _draw(low, high, rng, SAMPLE if n is None else n)})


def _draw(low: int, high: int, rng: np.random.Generator, n: int) -> list[int]:
    size = high - low
    if size <= n:
        return list(range(low, high))
    return [low + int(i) for i in rng.integers(size, size=n)]


def _distance(space: Space, i: int, j: int) -> int:
    """Knobs in which two configurations differ; of different families, all of them."""
    a, b = space[i], space[j]
    return len(a) if a.family != b.family else sum(a[name] != b[name] for name in a)


def _ranges(space: Space) -> list[tuple[int, int]]:
    """The half-open ranges of indices that each family with valid configurations holds."""
    ranges: list[tuple[int, int]] = []
    low = 0
    while low < len(space):
        name = space[low].family
        inside, outside = low, len(space)
        while outside - inside > 1:  # families stand one after another: bisect for the end of this one
            middle = (inside + outside) // 2
            inside, outside = (middle, outside) if space[middle].family == name else (inside, middle)
        ranges.append((low, outside))
        low = outside
    return ranges
