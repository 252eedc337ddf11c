"""Which blocks are run, and the operands they get."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.device.emulator.operands import COLUMNS, ROWS, Operands, axis_map, pitches
from gemmtune.device.emulator.tiles import choose_tiles, spans
from gemmtune.space.errors import LaunchError
from gemmtune.space.families.gemm_recipe import arguments, grid, tile
from gemmtune.space.gemm import Gemm
from gemmtune.space.recipe import LaunchRecipe, Tile

SIZE = st.integers(1, 700)


def recipe_of(problem: Gemm, bm: int, bn: int, group: int = 1, splits: int = 1) -> LaunchRecipe:
    return LaunchRecipe("k", (32, 1, 1), grid(bm, bn, splits), arguments(problem), tile(bm, bn, group))


@given(m=SIZE, n=SIZE, bm=st.sampled_from([8, 32, 64]), bn=st.sampled_from([16, 64]), group=st.sampled_from([1, 2, 8]),
       splits=st.integers(1, 3), limit=st.integers(1, 40), seed=st.integers(0, 9))  # fmt: skip
def test_tiles_are_distinct_inside_and_whole(
    m: int, n: int, bm: int, bn: int, group: int, splits: int, limit: int, seed: int
) -> None:
    problem = Gemm(m, n, 8)
    recipe = recipe_of(problem, bm, bn, group, splits)
    tiles, total = choose_tiles(recipe, problem.environment(), (m, n), limit, seed)
    assert total == -(-m // bm) * -(-n // bn)
    assert len({(t.row, t.column) for t in tiles}) == len(tiles) == min(total, limit)
    for t in tiles:
        assert t.row % bm == t.column % bn == 0
        assert t.rows == min(bm, m - t.row)
        assert t.columns == min(bn, n - t.column)
        assert len(t.blocks) == splits
        assert {z for _, _, z in t.blocks} == set(range(splits))
    if limit >= 4 and min(-(-m // bm), -(-n // bn)) >= 2:
        last = ((m - 1) // bm * bm, (n - 1) // bn * bn)
        assert {(0, 0), last, (0, last[1]), (last[0], 0)} <= {(t.row, t.column) for t in tiles}


def test_seeds_choose_other_inner_tiles() -> None:
    problem = Gemm(4096, 4096, 8)
    chosen = {
        frozenset(
            (t.row, t.column)
            for t in choose_tiles(recipe_of(problem, 64, 64), problem.environment(), (4096, 4096), 9, s)[0]
        )
        for s in range(4)
    }
    assert len(chosen) > 1


def test_a_grid_beyond_the_limit_is_said() -> None:
    problem = Gemm(2**24, 4096, 8)
    with pytest.raises(LaunchError, match="too large to emulate"):
        choose_tiles(recipe_of(problem, 8, 16), problem.environment(), (problem.m, problem.n), 4, 0)


def test_a_recipe_without_a_tile_inside_is_said() -> None:
    problem = Gemm(64, 64, 8)
    recipe = LaunchRecipe("k", (32, 1, 1), ("1", "1", "1"), (), Tile(32, 32, "bx - 64", "0"))
    with pytest.raises(LaunchError, match="No block"):
        choose_tiles(recipe, problem.environment(), (64, 64), 4, 0)


@pytest.mark.parametrize(
    ("layout", "a", "b"),
    [
        ("nt", (ROWS, None), (COLUMNS, None)),
        ("nn", (ROWS, None), (None, COLUMNS)),
        ("tn", (None, ROWS), (None, COLUMNS)),
        ("tt", (None, ROWS), (COLUMNS, None)),
    ],
)
def test_axis_map_follows_the_layout(layout: str, a: tuple[str | None, ...], b: tuple[str | None, ...]) -> None:
    found = axis_map(Gemm(5, 6, 7, layout=layout, epilogue="bias"))
    assert (found.row_axis, found.column_axis) == ("m", "n")
    assert found.dimensions == {"a": a, "b": b, "bias": (None, COLUMNS)}


@given(m=SIZE, n=SIZE, k=SIZE, other=SIZE, layout=st.sampled_from(["nt", "nn", "tn", "tt"]))
def test_pitches_keep_their_alignment(m: int, n: int, k: int, other: int, layout: str) -> None:
    problem = Gemm(m, n, k, layout=layout, epilogue="alpha_beta")
    sized = problem.with_axes(m=other)
    for padded in (False, True):
        found = pitches(sized, problem, padded=padded)
        for t, like in zip(sized.tensors(), problem.tensors(), strict=True):
            assert found[t.name] >= t.shape[1] + padded
            step = min(like.ld & -like.ld, 64)
            assert found[t.name] % step == 0
    assert pitches(problem, problem, padded=False) == {t.name: t.ld for t in problem.tensors()}


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_operands_hold_numbers_only_where_the_tiles_look(layout: str) -> None:
    problem = Gemm(100, 90, 20, layout=layout, epilogue="bias")
    rows, columns = np.array([3, 4, 99]), np.array([0, 50])
    lds = pitches(problem, problem, padded=True)
    operands = Operands.make(problem, rows, columns, lds, seed=1, at_end=True)
    a, b = ({t.name: t for t in problem.tensors()}[name] for name in "ab")
    for tensor, index in ((a, rows), (b, columns)):
        flat = operands.buffers[tensor.name].view(tensor.dtype.np).astype(np.float32)
        matrix = np.full((tensor.shape[0], lds[tensor.name]), np.nan, np.float32)
        matrix.reshape(-1)[: flat.size] = flat
        filled = ~np.isnan(matrix[:, : tensor.shape[1]])
        along = filled.all(axis=1) if tensor.shape[1] == 20 else filled.all(axis=0)
        assert (np.flatnonzero(along) == index).all()
        assert filled.sum() == len(index) * 20
        assert np.isnan(matrix[:, tensor.shape[1] :]).all()
    reference, scale = operands.reference()
    assert reference.shape == scale.shape == (3, 2)
    assert operands.buffers["d"].first_altered() is None
    operands.free()


def test_spans_are_sorted_unions() -> None:
    problem = Gemm(100, 100, 8)
    tiles, _ = choose_tiles(recipe_of(problem, 32, 32), problem.environment(), (100, 100), 4, 0)
    rows, columns = spans(tiles)
    assert rows.tolist() == columns.tolist() == [*range(32), *range(96, 100)]
