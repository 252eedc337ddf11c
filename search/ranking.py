"""What a study goes by while it runs: the objective, and the order of the best by it.

Who wins in the end is :func:`gemmtune.db.standing.standing`'s matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from gemmtune.db import TrialRecord
from gemmtune.device.base import Outcome

TIMED = frozenset({Outcome.CORRECT, Outcome.ABANDONED})
"""Outcomes of right kernels whose time counts (abandoned: measured until it was clear that they are beaten)."""
SLOWER = 1.03
"""What the time of an abandoned trial is at least, as a multiple of the best one's before."""


def objective(record: TrialRecord) -> float | None:
    """What a study minimises: our time over the baseline's, or microseconds where there is no baseline.

    None where the trial has no time, or none of the others' unit: a kernel that was abandoned for its first launches
    never ran beside the baseline, and microseconds among ratios would mislead. It is computed from the record alone, so
    that a resumed study sees what an undisturbed one saw.
    """
    if record.outcome not in TIMED or record.us is None:
        return None
    if record.outcome == Outcome.ABANDONED and record.ratio is None:
        return None
    if record.ratio is not None and not record.estimated:
        return 1.0 / record.ratio
    return record.us


class Lessons:
    """What a strategy is told of a study's trials, which come in the order of its batches.

    An abandoned trial was found slower than the best before it, by however little its time tells: at the power cap that
    may be one beside the baseline, which flatters whoever needs more power. It counts as slower by :data:`SLOWER`.
    """

    def __init__(self) -> None:
        self._best = math.inf

    def of(self, record: TrialRecord) -> float | None:
        """The objective to learn from the next trial."""
        value = objective(record)
        if value is None:
            return None
        if record.outcome == Outcome.CORRECT:
            self._best = min(self._best, value)
        elif self._best < math.inf:
            value = max(value, self._best * SLOWER)
        return value


def best_first(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The correct trials by objective; equals in the order they were tried."""
    scored = ((objective(r), r.number, r) for r in records if r.outcome == Outcome.CORRECT)
    return [r for _, _, r in sorted((s, n, r) for s, n, r in scored if s is not None)]
