"""Which blocks to run: corners, ragged edges and a seeded interior sample, by the recipe's own tile origins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmtune.space.errors import LaunchError
from gemmtune.space.expression import expression
from gemmtune.space.problem import Array
from gemmtune.space.recipe import LaunchRecipe

MAX_BLOCKS = 1 << 22
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

    First the four corners, then tiles of the last row and column, then seeded ones from the interior; the last row and
    column are the ragged ones where a size is no multiple of the tile.

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
    rows, columns = sorted({r for r, _ in origins}), sorted({c for _, c in origins})
    first = [(rows[-1], columns[-1]), (rows[0], columns[0]), (rows[0], columns[-1]), (rows[-1], columns[0])]
    # Few distinct rows and columns, since each one costs operands: two inner ones of each.
    inner_rows = [rows[i] for i in rng.integers(0, len(rows), 2)]
    inner_columns = [columns[i] for i in rng.integers(0, len(columns), 2)]
    edges = [(rows[-1], inner_columns[0]), (inner_rows[0], columns[-1])]
    interior = [(r, c) for r in inner_rows for c in inner_columns]
    wanted = dict.fromkeys(o for o in first + edges + interior if o in origins)
    out = list(wanted)[: max(1, limit)]
    if len(out) < limit:
        rest = [o for o in origins if o not in wanted]
        out += [rest[i] for i in rng.permutation(len(rest))[: limit - len(out)]]
    return out


def spans(tiles: list[ChosenTile]) -> tuple[Array, Array]:
    """The sorted rows and columns of the output that the tiles cover."""
    rows = np.unique(np.concatenate([np.arange(t.row, t.row + t.rows) for t in tiles]))
    columns = np.unique(np.concatenate([np.arange(t.column, t.column + t.columns) for t in tiles]))
    return rows, columns
