"""Strategies compared on a recorded space: how fast each one comes near the optimum, over many seeds.

A strategy is called in the very rhythm of a study (:mod:`gemmtune.search.rhythm`): batches of four, the results of four
batches ago known, its linear algebra on one thread. An evaluation is one configuration tried, whatever became of it.
A kernel that was given up counts with the time it was given up at: it is right, and it was the recording's leader, not
the search's, that beat it. None of those is taken for the optimum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmtune.search.rhythm import AHEAD, BATCH, one_thread
from gemmtune.search.strategy import Result, Strategy, make_strategy
from gemmtune.space.errors import SettingError
from gemmtune.space.recorded import RecordedSpace
from gemmtune.space.settings import check_count, check_seed

MARKS = (25, 50, 100, 200)
"""Evaluations after which the fraction of the optimum is told."""
GOALS = (0.95, 0.99)
"""Fractions of the optimum whose first evaluation is told."""
LARGEST = 10**7
"""Evaluations of all runs together, each of which is kept: 80 MB."""
Curve = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Replayed:
    """Runs of one strategy on one space.

    Attributes:
        strategy: its name.
        curves: [repeats, budget], the fraction of the optimum (optimum / best so far) after each evaluation; 0 before
            the first correct one.
        seconds: wall time of the strategy's own work, over all runs.
    """

    strategy: str
    curves: Curve
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The figures of a result file (see :func:`figures`), and the mean and spread of the curves."""
        repeats, budget = self.curves.shape
        return {
            **figures(self.curves),
            "repeats": repeats,
            "budget": budget,
            "ms_per_evaluation": round(1e3 * self.seconds / max(1, repeats * budget), 3),
            "curve": {
                name: [round(float(v), 5) for v in line]
                for name, line in (
                    ("mean", self.curves.mean(axis=0)),
                    ("low", np.quantile(self.curves, 0.1, axis=0)),
                    ("high", np.quantile(self.curves, 0.9, axis=0)),
                )
            },
        }


def figures(curves: Curve) -> dict[str, Any]:
    """What is told of ``curves`` [repeats, budget]: for each of :data:`MARKS` within the budget the mean, its standard
    error and the worst, and for each of :data:`GOALS` the median evaluation that reaches it (None: half of
    the runs or more never do).
    """
    repeats, budget = curves.shape
    marks: dict[str, dict[str, float]] = {}
    for mark in (m for m in MARKS if m <= budget):
        at = curves[:, mark - 1]
        error = float(at.std(ddof=1) / np.sqrt(repeats)) if repeats > 1 else 0.0
        marks[str(mark)] = {
            "mean": round(float(at.mean()), 5),
            "standard_error": round(error, 5),
            "worst": round(float(at.min()), 5),
        }
    goals: dict[str, float | None] = {}
    for goal in GOALS:
        reached = curves >= goal
        first = np.where(reached.any(axis=1), reached.argmax(axis=1) + 1.0, np.inf)
        # of an even number of runs the later one of the middle: half a run that never arrives is no number
        median = float(np.sort(first)[repeats // 2])
        goals[f"{goal:g}"] = median if np.isfinite(median) else None
    return {"fraction": marks, "evaluations": goals}


def replay(
    space: RecordedSpace,
    strategy: str,
    *,
    budget: int = 200,
    repeats: int = 30,
    seed: int = 0,
    make: Callable[[str, RecordedSpace, int, int], Strategy] | None = None,
    told: Callable[[int], None] | None = None,
) -> Replayed:
    """Run ``strategy`` on ``space`` with the seeds ``seed`` to ``seed + repeats - 1``.

    Args:
        space: what is searched; its times are exact, so that a run is a function of its seed.
        strategy: a name that :func:`gemmtune.search.strategy.make_strategy` knows.
        budget: evaluations of each run; no more than the space has are made, and the last value stands for the rest.
        repeats: runs.
        seed: the first one.
        make: makes a strategy from its name, the space, a seed and the budget, instead of ``make_strategy``.
        told: is called with the number of runs done after each.

    Raises:
        UnknownNameError: there is no such strategy.
        SettingError: ``budget``, ``repeats`` or ``seed`` out of range, or more than :data:`LARGEST` evaluations.
        RecordingError: no configuration of the space is correct.
    """
    check_count("budget", budget)
    check_count("repeats", repeats)
    check_seed(seed)
    if repeats * budget > LARGEST:
        raise SettingError(
            f"{repeats} runs of {budget} evaluations are more than the {LARGEST} that are kept in all: give fewer; the "
            f"space has {len(space)} configurations."
        )
    made = make or make_strategy
    curves = np.zeros((repeats, budget))
    seconds = 0.0
    with one_thread():
        for number in range(repeats):
            began = perf_counter()
            one = made(strategy, space, seed + number, budget)
            curve, spent = run(space, one, budget, perf_counter() - began)
            curves[number] = curve
            seconds += spent
            if told is not None:
                told(number + 1)
    return Replayed(strategy, curves, seconds)


def run(space: RecordedSpace, strategy: Strategy, budget: int, seconds: float = 0.0) -> tuple[Curve, float]:
    """One run: the fraction of the optimum after each evaluation, and the strategy's seconds added to ``seconds``."""
    batches: deque[list[int]] = deque()
    results: list[Result] = []
    objectives: list[float | None] = []
    planned = 0
    while True:
        began = perf_counter()
        if results:
            strategy.observe(results)
        while planned < budget and len(batches) <= AHEAD:
            n = min(BATCH, budget - planned)
            planned += n
            batches.append(strategy.propose(n))
        seconds += perf_counter() - began
        if not batches:
            break
        results = []
        for index in batches.popleft():
            row = space.recorded(index)
            value = space.recording.objective(row)
            results.append(Result(index, row.outcome, value))
            objectives.append(value)
    return curve_of(space, objectives, budget), seconds


def curve_of(space: RecordedSpace, objectives: Sequence[float | None], budget: int) -> Curve:
    """The fraction of the optimum after each evaluation, from their objectives in order; None for failures."""
    optimum, best = space.recording.optimum, np.inf
    curve = np.zeros(budget)
    for place in range(budget):
        value = objectives[place] if place < len(objectives) else None
        best = best if value is None else min(best, value)
        curve[place] = min(1.0, optimum / best)
    return curve
