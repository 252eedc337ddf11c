"""How long a kernel that is right is timed beside its baseline, and what of it counts: the rules of one trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmtune.device.base import Job, Measurement
from gemmtune.device.cuda.timing import (
    BEATEN,
    FINAL,
    TRIAL,
    Series,
    Stopwatch,
    interleave,
    measurement,
    ratios,
    settle,
)
from gemmtune.device.statistics import median_interval

if TYPE_CHECKING:
    from gemmtune.device.cuda.bench import Bench

FEWEST = 4
"""Samples before anything is said of a ratio."""
BEHIND = 0.9
"""A trial whose ratio surely lies below this fraction of the best one's is not timed any finer than to say so."""


def sample(
    job: Job, bench: Bench, watch: Stopwatch, near: tuple[Series, float], baseline: tuple[Series, float]
) -> tuple[Measurement, str]:
    """Time a kernel as ``job`` says: its time, and why it is clearly beaten where it is, as a sentence.

    ``near`` and ``baseline``: each with about what a launch takes, in microseconds.
    """
    (ours, us), (other, other_us) = near, baseline
    reason = ""

    def below(fraction: float) -> bool:
        if job.thorough or job.best_ratio is None or len(ours.samples) < FEWEST:
            return False
        return median_interval(ratios(ours, other)).high < fraction * job.best_ratio

    if job.effort == "final":
        settle({ours: us, other: other_us}, capped=bench.capped)
        interleave(watch, other, [ours], FINAL, lambda: below(BEATEN))
        measured = measurement(ours, other, watch)
    elif bench.capped and job.regime == "sustained":
        glance = bench.settled.glance(watch, ours, other)
        measured = measurement(ours, other, watch)
        reason = "" if job.thorough else bench.settled.behind(glance)
        if not reason:
            measured, reason = bench.settled.measure(watch, ours, us, other, other_us, glance, thorough=job.thorough)
    else:
        interleave(watch, other, [ours], TRIAL, lambda: below(BEHIND))
        measured = measurement(ours, other, watch)
    bench.capped |= watch.capped
    if below(BEATEN):
        reason = f"At {measured.ratio:.3f} of the baseline it is clearly behind the best so far ({job.best_ratio:.3f})."
    return measured, reason
