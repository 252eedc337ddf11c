"""Which blocks of clusters and of persistent grids run, and at what sizes, so that all they write is looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmtune.device.emulator.emulate import plan_runs
from gemmtune.device.emulator.tiles import ONE_PIECE, all_tiles, choose_tiles
from gemmtune.space.gemm import Gemm
from gemmtune.space.recipe import LaunchRecipe, Tile

TILES = "ceil_div(m, 64) * ceil_div(n, 32)"
PLAIN = LaunchRecipe(
    entry="f",
    block=(128, 1, 1),
    grid=(TILES, "1", "1"),
    arguments=(),
    tile=Tile(64, 32, "bx // ceil_div(n, 32) * 64", "bx % ceil_div(n, 32) * 32"),
)
PERSISTENT = replace(PLAIN, grid=(f"min({TILES}, sms * 2)", "1", "1"))
CUT = replace(PERSISTENT, workspace=f"min({TILES}, sms) * 1024")
PROBLEM = Gemm(320, 128, 64)  # 5 x 4 tiles


def chosen(recipe: LaunchRecipe, sms: int, limit: int = 1) -> tuple[set[int], set[int]]:
    """Numbers of the tiles and of the blocks that are chosen."""
    tiles, total = choose_tiles(recipe, {**PROBLEM.environment(), "sms": sms}, (320, 128), limit, 0)
    assert total == 20
    return {t.row // 64 * 4 + t.column // 32 for t in tiles}, {b[0] for t in tiles for b in t.blocks}


def test_with_room_for_all_a_persistent_grid_is_a_plain_one() -> None:
    assert chosen(PERSISTENT, ONE_PIECE) == chosen(PLAIN, ONE_PIECE)


@pytest.mark.parametrize("sms", [1, 3])
def test_a_persistent_block_brings_all_its_tiles(sms: int) -> None:
    tiles, blocks = chosen(PERSISTENT, sms)
    assert tiles == {t for t in range(20) if t % (2 * sms) in blocks}
    assert len(blocks) == 1


def test_a_cluster_brings_the_tiles_of_all_its_blocks() -> None:
    tiles, blocks = chosen(replace(PLAIN, cluster=(2, 1, 1)), ONE_PIECE)
    assert tiles == blocks
    assert {t // 2 for t in tiles} == {min(tiles) // 2}
    assert len(tiles) == 2


def test_persistent_clusters_bring_both() -> None:
    tiles, blocks = chosen(replace(PERSISTENT, cluster=(2, 1, 1)), 2)
    assert tiles == {t for t in range(20) if t % 4 // 2 == min(blocks) // 2}


def test_split_siblings_in_other_persistent_blocks_are_brought_with_their_tiles() -> None:
    split = replace(
        PERSISTENT,
        grid=(f"min({TILES} * 2, sms)", "1", "1"),
        tile=Tile(64, 32, "bx // 2 // ceil_div(n, 32) * 64", "bx // 2 % ceil_div(n, 32) * 32"),
    )
    tiles, blocks = chosen(split, 4)
    assert {piece % 4 for t in tiles for piece in (2 * t, 2 * t + 1)} == blocks
    assert {piece // 2 for piece in range(40) if piece % 4 in blocks} == tiles


def test_a_persistent_kernel_also_runs_with_several_tiles_a_block() -> None:
    runs = plan_runs(PROBLEM, PERSISTENT, 0)
    several = [run for run in runs if run.sms != ONE_PIECE]
    assert {run.race_checks for run in several} == {True, False}
    for run in several:
        assert PERSISTENT.grid_size({"m": run.size, "n": 128, "sms": run.sms})[0] * 2 <= -(-run.size // 64) * 4
    assert [run for run in runs if run.sms == ONE_PIECE] == plan_runs(PROBLEM, PLAIN, 0)


def test_work_that_the_device_cuts_runs_whole_with_shares_of_more_and_less_than_a_tile() -> None:
    runs = plan_runs(PROBLEM, CUT, 0)
    assert all(run.whole for run in runs)
    shares = [-(-run.size // 64) * 4 / run.sms for run in runs]
    assert min(shares) < 1 < max(shares)
    tiles, total = all_tiles(CUT, {"m": 100, "n": 100, "sms": 3}, (100, 100))
    assert total == len(tiles) == 8
    assert sum(t.rows * t.columns for t in tiles) == 100 * 100
    assert [len(t.blocks) for t in tiles] == [6, *[0] * 7]


def test_a_large_whole_grid_runs_once() -> None:
    assert len(plan_runs(Gemm(64, 8192, 16384), CUT, 0)) == 1


def test_a_small_output_is_left_as_it_is() -> None:
    assert {run.size for run in plan_runs(Gemm(40, 128, 64), CUT, 0)} == {40, 1}
