"""Configurations as rows of real numbers: the knobs, and what follows from them and decides about time.

Sizes go by their logarithm, since twice as many means the same anywhere on their scale. A word has a column for each of
its values. The knobs of a family are columns of their own, 0 for the other families' configurations. Traits of the
kernel (its tile, threads, registers) and parts of the cost estimate (waves, occupancy, bytes a flop, time) are shared
by all families. Of another tool's kernels nothing but the knobs is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite, log2

import numpy as np

from gemmtune.search.gaussian import Floats
from gemmtune.space.configuration import Parameter
from gemmtune.space.estimate import Estimate, estimate_traits
from gemmtune.space.family import Traits
from gemmtune.space.space import Space

NEVER = 1e9
"""Microseconds that stand for an estimate of infinity."""


class Features:
    """The features of a space's configurations.

    ``estimable``: whether all of its families have a cost estimate; rows then cost some tens of microseconds each, and
    about one where not. Rows are kept.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self.estimable = all(family.estimable for family in space.families)
        self._tables = [[_encoded(p) for p in space.parameters(family.name)] for family in space.families]
        self._rows: dict[int, tuple[float, ...]] = {}

    def rows(self, indices: Sequence[int]) -> Floats:
        """[configurations, features]; the scale of each feature is its own."""
        parts = [self._knobs(indices)]
        if self.estimable:
            parts.append(np.array([self._derived(index) for index in indices], float).reshape(len(indices), -1))
        return np.concatenate(parts, axis=1)

    def estimated(self, indices: Sequence[int]) -> Floats:
        """Natural logarithm of the estimated microseconds of each; zeros where there is no estimate."""
        if not self.estimable:
            return np.zeros(len(indices))
        return np.array([self._derived(index)[0] for index in indices], float) * float(np.log(2))

    def _knobs(self, indices: Sequence[int]) -> Floats:
        numbers, digits = self._space.digits(np.asarray(indices, np.int64))
        parts: list[Floats] = []
        for number, tables in enumerate(self._tables):
            mine = numbers == number
            columns = [np.where(mine[:, None], t[np.where(mine, digits[:, i], 0)], 0.0) for i, t in enumerate(tables)]
            parts += columns
        if len(self._tables) > 1:
            parts.append((numbers[:, None] == np.arange(len(self._tables))).astype(float))
        return np.concatenate(parts, axis=1)

    def _derived(self, index: int) -> tuple[float, ...]:
        row = self._rows.get(index)
        if row is None:
            space = self._space
            configuration = space[index]
            family = next(f for f in space.families if f.name == configuration.family)
            traits = family.traits(space.problem, configuration, space.gpu)
            row = _derived(traits, estimate_traits(space.problem, traits, space.gpu))
            self._rows[index] = row
        return row


def _derived(t: Traits, e: Estimate) -> tuple[float, ...]:
    """The estimated time first; binary logarithms all."""
    waves = e.waves if isfinite(e.waves) else NEVER
    sizes = (t.tile_m, t.tile_n, t.tile_k, t.splits, t.stages, t.threads, t.shared_bytes, t.registers, e.blocks)
    return (
        log2(min(e.us, NEVER)),
        *(log2(1 + size) for size in sizes),
        log2(t.tile_m * t.tile_n),
        log2((t.tile_m + t.tile_n) / (t.tile_m * t.tile_n)),  # bytes a flop
        log2(1 + e.blocks_per_sm),
        log2(1 + waves),
        log2(ceil(waves) / max(waves, 1e-3)),  # what the last wave leaves idle
        e.occupancy,
    )


def _encoded(parameter: Parameter) -> Floats:
    """[values, columns]: one column for sizes, switches and lone values, one a value for words."""
    values = parameter.values
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) == len(values):
        if min(numbers) > 0:
            return np.asarray(np.log2(np.array(numbers, float)))[:, None]
        low = min(numbers)
        return np.asarray(np.log2(1.0 + np.array(numbers, float) - low))[:, None]
    if len(values) <= 2:
        return np.arange(len(values), dtype=float)[:, None]
    return np.eye(len(values))
