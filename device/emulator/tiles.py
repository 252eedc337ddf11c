"""Which blocks to run: corners, ragged edges and a seeded interior sample, by the recipe's own tile origins.

Clusters run whole, and a persistent kernel's block does all the pieces of work that are its own: what they write
besides is chosen along with them. A grid over ``sms`` is persistent: the tile's expressions give the origin of piece
``bx``, and block ``b`` of a grid of ``g`` does pieces ``b``, ``b + g``, ``b + 2 g`` and so on. Where the workspace
depends on ``sms`` too, how the work is cut depends on the device (stream-K), and only the whole grid can be run.
"""

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

ONE_PIECE = 1 << 16
"""Multiprocessors enough for a persistent grid to have one block a piece of work."""
MAX_BLOCKS = 1 << 20
"""Grids up to this size are looked at whole (their origins are evaluated as arrays)."""


@dataclass(frozen=True)
class ChosenTile:
    """A tile of the output, clipped to it, and blocks that work on it (split-K siblings)."""

    row: int
    column: int
    rows: int
    columns: int
    blocks: tuple[tuple[int, int, int], ...]


def is_persistent(recipe: LaunchRecipe) -> bool:
    """Whether the grid depends on the device's multiprocessors."""
    return any("sms" in expression(text).names for text in recipe.grid)


def is_cut_by_device(recipe: LaunchRecipe) -> bool:
    """Whether the cut of the work does (stream-K)."""
    return is_persistent(recipe) and "sms" in expression(recipe.workspace).names


def all_tiles(
    recipe: LaunchRecipe, environment: Mapping[str, Any], shape: tuple[int, int]
) -> tuple[list[ChosenTile], int]:
    """The whole output and the whole grid: every block stands with the first tile."""
    x, y, z = recipe.grid_size(environment)
    blocks = tuple((i, j, k) for k in range(z) for j in range(y) for i in range(x))
    height, width = recipe.tile.rows, recipe.tile.columns
    tiles = [
        ChosenTile(r, c, min(height, shape[0] - r), min(width, shape[1] - c), () if r or c else blocks)
        for r in range(0, shape[0], height)
        for c in range(0, shape[1], width)
    ]
    return tiles, len(tiles)


def choose_tiles(
    recipe: LaunchRecipe, environment: Mapping[str, Any], shape: tuple[int, int], limit: int, seed: int
) -> tuple[list[ChosenTile], int]:
    """Up to ``limit`` tiles (at least one) of an output of ``shape``, and how many there are in all.

    The last row and column of tiles come first (the ragged ones, where a size is no multiple of the tile), then the
    first ones, then seeded ones from the interior: of four tiles or more, four are the corners. Tiles that the same
    clusters or persistent blocks write come on top.

    Raises:
        LaunchError: the grid has more than ``MAX_BLOCKS`` blocks, or no block whose origin lies in the output.
    """
    pieces = {**environment, "sms": ONE_PIECE}
    x, y, z = recipe.grid_size(pieces)
    if x * y * z > MAX_BLOCKS:
        raise LaunchError(
            f"A grid of {x} x {y} x {z} blocks is too large to emulate: choose a smaller problem or larger tiles."
        )
    linear = np.arange(x * y * z, dtype=np.int64)
    ids = {"bx": linear % x, "by": linear // x % y, "bz": linear // (x * y)}
    names = {**pieces, **ids}
    row, column = (_evaluate(text, names, linear.size) for text in (recipe.tile.row, recipe.tile.column))
    inside = np.flatnonzero((row >= 0) & (row < shape[0]) & (column >= 0) & (column < shape[1]))
    if not inside.size:
        raise LaunchError(
            f"No block of the grid {x} x {y} x {z} has its tile inside the {shape[0]} x {shape[1]} output."
        )
    keys, position = np.unique(row[inside] * shape[1] + column[inside], return_inverse=True)
    origins = {(int(k) // shape[1], int(k) % shape[1]): i for i, k in enumerate(keys)}
    width = min(x, recipe.grid_size({"sms": ONE_PIECE, **environment})[0])
    block = np.stack([ids["bx"][inside] % width, ids["by"][inside], ids["bz"][inside]], axis=1)

    preferred = [origins[origin] for origin in _preferred(origins, np.random.default_rng(seed), limit)]
    if width < x or recipe.cluster != (1, 1, 1):
        preferred = _with_company(preferred, position, block // np.array(recipe.cluster))
    order = np.argsort(position, kind="stable")
    bounds = np.searchsorted(position[order], np.arange(len(keys) + 1))
    chosen = []
    for i in preferred:
        at_row, at_column = divmod(int(keys[i]), shape[1])
        members = np.unique(block[order[bounds[i] : bounds[i + 1]]], axis=0)
        blocks = tuple((int(bx), int(by), int(bz)) for bx, by, bz in members)
        rows = min(recipe.tile.rows, shape[0] - at_row)
        chosen.append(ChosenTile(at_row, at_column, rows, min(recipe.tile.columns, shape[1] - at_column), blocks))
    return chosen, len(keys)


def _with_company(tiles: list[int], tile_of: Array, owner: Array) -> list[int]:
    """``tiles``, and behind them all that their owners work on, with those tiles' owners, until none is missing.

    ``tile_of`` and ``owner`` belong to the pieces of work: the tile's number, and the cluster's place in the grid.
    """
    _, owner_of = np.unique(owner, axis=0, return_inverse=True)
    owner_of = owner_of.reshape(-1)
    found = np.zeros(int(tile_of.max()) + 1, bool)
    found[tiles] = True
    while True:
        at_work = np.zeros(int(owner_of.max()) + 1, bool)
        at_work[owner_of[found[tile_of]]] = True
        grown = found.copy()
        grown[tile_of[at_work[owner_of]]] = True
        if (grown == found).all():
            return [*tiles, *(int(i) for i in np.flatnonzero(found) if i not in set(tiles))]
        found = grown


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
