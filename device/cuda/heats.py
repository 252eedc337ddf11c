"""Heats: how several things compare at the power cap, each run alone for half a second, where a final takes seconds."""

from __future__ import annotations

from collections.abc import Mapping

from gemmtune.device.cuda.timing import SETTLE, SPAN, Series, Stopwatch
from gemmtune.device.statistics import median_interval

FEWEST = 3
"""Kernels in a final that heats are worth their time for."""
BEHIND = 0.98
"""Who runs at less than this fraction of the best one's speed in the heats is left out of the final: times of so long
scatter by 0.4 % (``benchmarks/h200/power-cap.json``)."""
SAMPLES = 3


def run_alone(watch: Stopwatch, series: Mapping[Series, float]) -> dict[Series, float]:
    """Microseconds of a launch of each, at the clock that its own power leaves it; arguments as of :func:`heats`."""
    return {one: median_interval(watch.alone(one, us, SETTLE, SPAN, SAMPLES)).median for one, us in series.items()}


def heats(watch: Stopwatch, kernels: Mapping[Series, float]) -> dict[Series, str]:
    """Run each alone for about half a second; those that are clearly behind, each with a sentence that says so.

    Args:
        watch: takes the times.
        kernels: with about what a launch of each takes, in microseconds.
    """
    if len(kernels) < FEWEST:
        return {}
    times = run_alone(watch, kernels)
    best = min(times.values())
    return {
        one: f"In the heats of the finals, at {us:.1f} us, it was clearly behind the best ({best:.1f} us)."
        for one, us in times.items()
        if us * BEHIND > best
    }
