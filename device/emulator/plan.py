"""Which launches prove one kernel: sizes, schedules, and how many multiprocessors a persistent grid is told of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gemmtune.device.emulator.launch import SCHEDULES, Schedule
from gemmtune.device.emulator.operands import axis_map, output_of
from gemmtune.device.emulator.tiles import MAX_BLOCKS, ONE_PIECE, is_cut_by_device, is_persistent
from gemmtune.space.problem import Problem
from gemmtune.space.recipe import LaunchRecipe

_SEVERAL_WHOLE = 1_000_000_000
"""Multiply-adds of a whole grid that is run more than once."""


@dataclass(frozen=True)
class Run:
    """One launch to make.

    The size of the run-time axis, the schedule, the share of the work but at least so many tiles, and what is checked
    besides the numbers. ``sms`` is what a persistent grid is told; ``whole`` runs all of it.
    """

    size: int
    schedule: Schedule
    share: float
    least: int = 1
    padded: bool = False
    race_checks: bool = True
    profile: bool = False
    sms: int = ONE_PIECE
    whole: bool = False


def size_of(problem: Problem) -> int:
    """The size of the run-time axis."""
    return problem.axes[axis_map(problem).row_axis]


def plan_runs(problem: Problem, recipe: LaunchRecipe, seed: int) -> list[Run]:
    """The runs for one kernel.

    Its own size under every schedule, then, where the row axis is free, a size with the other raggedness and padded
    pitches, and 1. A size whose grid is too large to look at whole is cut down, as ragged as it was. Of a persistent
    kernel these see one piece of work a block; one more run has blocks with several.
    """
    if is_cut_by_device(recipe):
        return _whole_runs(problem, recipe)
    lowest, highest, random = SCHEDULES
    own = size_of(problem)
    free = axis_map(problem).row_axis not in recipe.constants
    blocks = math.prod(recipe.grid_size({**problem.environment(), "sms": ONE_PIECE}))
    if free and blocks > MAX_BLOCKS:
        own = max(1, own * MAX_BLOCKS // blocks // recipe.tile.rows - 1) * recipe.tile.rows + own % recipe.tile.rows
    runs = [
        Run(own, lowest, 0.3, least=4, profile=True),
        Run(own, highest, 0.2, least=2, race_checks=False),
        Run(own, random, 0.2, least=2, race_checks=False),
    ]
    if is_persistent(recipe):
        size = _few_rows(problem, recipe, 3) if free else own
        grid = recipe.grid_size({**_resized(problem, size).environment(), "sms": ONE_PIECE})[0]
        one = recipe.grid_size({**_resized(problem, size).environment(), "sms": 1})[0]
        if grid >= 2 * one:
            sms = max(1, grid // (3 * one))
            runs.append(Run(size, lowest, 0.05, sms=sms))
            runs.append(Run(size, random, 0.05, sms=sms, race_checks=False))
    if not free:
        return runs
    tile = recipe.tile.rows
    ragged = own % tile != 0
    other = 2 * tile if ragged else tile + int(np.random.default_rng(seed).integers(1, max(2, tile)))
    runs.append(Run(other, highest, 0.2, padded=True))
    if own != 1:
        runs.append(Run(1, random, 0.1, padded=True, race_checks=False))
    return runs


def _whole_runs(problem: Problem, recipe: LaunchRecipe) -> list[Run]:
    """For a cut that depends on the device: whole grids at few rows, with shares of more and of less than a tile.

    A problem whose other sizes are large anyway takes many seconds a run, and gets one.
    """
    lowest, highest, random = SCHEDULES
    own = size_of(problem)
    free = axis_map(problem).row_axis not in recipe.constants
    size = _few_rows(problem, recipe, 2) if free else own
    if free and _work(problem, recipe, size) > _SEVERAL_WHOLE:
        size = _few_rows(problem, recipe, 1)
    tiles = math.prod(-(-extent // step) for extent, step in _extents(problem, recipe, size))
    runs = [
        Run(size, lowest, 1.0, profile=True, sms=max(1, tiles * 2 // 3), whole=True),
        Run(size, highest, 1.0, sms=3, race_checks=False, whole=True),
        Run(size, random, 1.0, sms=tiles + max(1, tiles // 2), race_checks=False, whole=True),
    ]
    if free and own != 1:
        runs.append(Run(1, random, 1.0, padded=True, sms=tiles, whole=True))
    return runs if _work(problem, recipe, size) <= _SEVERAL_WHOLE else runs[:1]


def _work(problem: Problem, recipe: LaunchRecipe, size: int) -> int:
    """Multiply-adds of all tiles, whose last row is as much as any."""
    return _resized(problem, size).flops // 2 // size * -(-size // recipe.tile.rows) * recipe.tile.rows


def _extents(problem: Problem, recipe: LaunchRecipe, rows: int) -> tuple[tuple[int, int], tuple[int, int]]:
    shape = output_of(_resized(problem, rows)).shape
    return (shape[0], recipe.tile.rows), (shape[1], recipe.tile.columns)


def _few_rows(problem: Problem, recipe: LaunchRecipe, count: int) -> int:
    """A size of some ``count`` rows of tiles, as ragged as the problem's own."""
    own, tile = size_of(problem), recipe.tile.rows
    return own if own <= count * tile else (count - 1) * tile + (own % tile or tile)


def _resized(problem: Problem, size: int) -> Problem:
    return problem if size == size_of(problem) else problem.with_axes(**{axis_map(problem).row_axis: size})
