"""Which blocks to run: corners, ragged edges and a seeded interior sample, by the recipe's own tile origins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmtune.space.errors import LaunchError
from gemmtune.space.expression import expression
from gemmtune.space.problem import Array
from gemmtune.space.recipe import LaunchRecipe

MAX_BLOCKS = 1 << 20
"""Grids up to this size are looked at whole (their origins are evaluated as arrays)."""


@dataclass(frozen=True)
class ChosenTile:
    """A tile of the output, clipped to it, and all blocks that work on it (split-K siblings)."""

    row: int
    column: int
    rows: int
    columns: int
    blocks: tuple[tuple[int, int, int], ...]


def choose_tiles(
    recipe: LaunchRecipe, environment: Mapping[str, Any], shape: tuple[int, int], limit: int, seed: int
) -> tuple[list[ChosenTile], int]:
    """Up to ``limit`` tiles (at least one) of an output of ``shape``, and how many there are in all.

    The last row and column of tiles come first (the ragged ones, where a size is no multiple of the tile), then the
    first ones, then seeded ones from the interior: of four tiles or more, four are the corners.

    Raises:
        LaunchError: the grid has more than ``MAX_BLOCKS`` blocks, or no block whose origin lies in the output.
    """
    x, y, z = recipe.grid_size(environment)
    if x * y * z > MAX_BLOCKS:
        raise LaunchError(
            f"A grid of {x} x {y} x {z} blocks is too large to emulate: choose a smaller problem or larger tiles."
        )
    linear = np.arange(x * y * z, dtype=np.int64)
    ids = {"bx": linear % x, "by": linear // x % y, "bz": linear // (x * y)}
    names = {**environment, **ids}
    row, column = (_evaluate(text, names, linear.size) for text in (recipe.tile.row, recipe.tile.column))
    inside = np.flatnonzero((row >= 0) & (row < shape[0]) & (column >= 0) & (column < shape[1]))
    if not inside.size:
        raise LaunchError(
            f"No block of the grid {x} x {y} x {z} has its tile inside the {shape[0]} x {shape[1]} output."
        )
    keys, position = np.unique(row[inside] * shape[1] + column[inside], return_inverse=True)
    order = np.argsort(position, kind="stable")
    bounds = np.searchsorted(position[order], np.arange(len(keys) + 1))
    origins = {(int(k) // shape[1], int(k) % shape[1]): i for i, k in enumerate(keys)}

    chosen = []
    for origin in _preferred(origins, np.random.default_rng(seed), limit):
        i = origins[origin]
        members = inside[order[bounds[i] : bounds[i + 1]]]
        blocks = tuple((int(ids["bx"][m]), int(ids["by"][m]), int(ids["bz"][m])) for m in members)
        rows = min(recipe.tile.rows, shape[0] - origin[0])
        chosen.append(ChosenTile(*origin, rows, min(recipe.tile.columns, shape[1] - origin[1]), blocks))
    return chosen, len(keys)


def _evaluate(text: str, names: Mapping[str, Any], size: int) -> Array:
    """An origin for every block; -1 where the expression has no value."""
    values, undefined = expression(text).on_arrays(names)
    whole = np.broadcast_to(np.asarray(values, np.int64), (size,))
    return whole if undefined is None else np.where(undefined, -1, whole)


def _preferred(origins: Mapping[tuple[int, int], int], rng: np.random.Generator, limit: int) -> list[tuple[int, int]]:
    """The product of few rows and few columns of tiles: each costs operands, and one reference serves them all."""
    rows, columns = sorted({r for r, _ in origins}), sorted({c for _, c in origins})
    side = min(len(rows), max(1, math.isqrt(limit)))
    across = min(len(columns), -(-limit // side))
    side = min(len(rows), -(-limit // across))
    some_rows, some_columns = _ends_first(rows, side, rng), _ends_first(columns, across, rng)
    order = sorted((i + j, i, j) for i in range(len(some_rows)) for j in range(len(some_columns)))
    wanted = [(some_rows[i], some_columns[j]) for _, i, j in order]
    out = [origin for origin in wanted if origin in origins][: max(1, limit)]
    return out or [next(iter(origins))]


def _ends_first(values: list[int], count: int, rng: np.random.Generator) -> list[int]:
    """``count`` of the sorted values: the last (perhaps ragged) one, the first, then others; a single one at random."""
    if count == 1:
        return [values[rng.integers(len(values))]]
    ends = list(dict.fromkeys((values[-1], values[0])))
    inner = [values[i + 1] for i in rng.permutation(max(0, len(values) - 2))]
    return (ends + inner)[:count]


def spans(tiles: list[ChosenTile]) -> tuple[Array, Array]:
    """The sorted rows and columns of the output that the tiles cover."""
    rows = np.unique(np.concatenate([np.arange(t.row, t.row + t.rows) for t in tiles]))
    columns = np.unique(np.concatenate([np.arange(t.column, t.column + t.columns) for t in tiles]))
    return rows, columns
