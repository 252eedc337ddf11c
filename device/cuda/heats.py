"""Heats: who of several finalists is clearly behind at the power cap, where a final takes seconds for each."""

from __future__ import annotations

from collections.abc import Mapping

from gemmtune.device.cuda.timing import SETTLE, SPAN, Series, Stopwatch
from gemmtune.device.statistics import median_interval

FEWEST = 3
"""Kernels in a final that heats are worth their time for."""
BEHIND = 0.98
"""Who runs at less than this fraction of the best one's speed in the heats is left out of the final: one time there is
off by more than a percent but seldom."""
SAMPLES = 3


def heats(watch: Stopwatch, kernels: Mapping[Series, float]) -> dict[Series, str]:
    """Run each alone for about half a second; those that are clearly behind, each with a sentence that says so.

    Args:
        watch: takes the times.
        kernels: with about what a launch of each takes, in microseconds.
    """
    if len(kernels) < FEWEST:
        return {}
    times = {one: median_interval(watch.alone(one, us, SETTLE, SPAN, SAMPLES)).median for one, us in kernels.items()}
    best = min(times.values())
    return {
        one: f"In the heats of the finals, at {us:.1f} us, it was clearly behind the best ({best:.1f} us)."
        for one, us in times.items()
        if us * BEHIND > best
    }
