"""The one rule of who stands where among the trials of a problem, and so of who wins.

Whatever shows or ships a winner (a study's result, the benchmark, queries, packs) takes it from here.
"""

from __future__ import annotations

from collections.abc import Iterable

from gemmtune.db.records import CORRECT, Timing, TrialRecord
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import GemmtuneError
from gemmtune.space.problem import problem_from_json

MARGIN = 0.005
"""Fraction of speed that may be given up for simplicity."""


def standing(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The correct and timed ones of ``records``, which are of one problem and timed in one way, the winner first.

    Those measured among the finalists stand before the others, each by the score of the time that counts, equals in
    the order they were tried. The first of them in that order is the quickest; whose 95 % interval meets its own, was
    taken in the same way, and whose score is within :data:`MARGIN` of its own, is its equal; and the simplest of these
    equals wins (:meth:`gemmtune.space.family.Family.complexity`). The margin bounds what simplicity may cost where a
    restless clock makes the intervals wide: that no difference was shown does not mean that there is none.
    """
    timed = [(t, r) for r in records if (t := r.timing) is not None and r.outcome == CORRECT]
    timed.sort(key=lambda pair: (not pair[0].final, pair[0].score, pair[1].id))
    ordered = [record for _, record in timed]
    quickest = timed[0][0] if timed else None
    equals = [record for t, record in timed if quickest and is_equal(t, quickest) and _is_near(t, quickest)]
    ranked = [(key, i) for i, record in enumerate(equals) if (key := _complexity(record)) is not None]
    if len(equals) > 1 and ranked:
        ordered.insert(0, ordered.pop(min(ranked)[1]))
    return ordered


def _is_near(timing: Timing, quickest: Timing) -> bool:
    return timing.score - quickest.score <= MARGIN * abs(quickest.score)


def is_equal(timing: Timing, quickest: Timing) -> bool:
    """Whether ``timing`` is no slower than ``quickest`` as far as their 95 % intervals can tell: they meet.

    Two times that are the same lie that far apart once in 180 times. (That the one's median lies outside the other's
    interval is no proof: of two equal ones with normal noise, it does in one case of six.)
    """
    return timing.final == quickest.final and timing.score_reach <= quickest.score_bound


def _complexity(record: TrialRecord) -> tuple[int | str, ...] | None:
    """How simple it is; None for a problem, family or knob that this version does not know."""
    from gemmtune.space import families  # with their rules, which only a board with equals needs

    try:
        problem = problem_from_json(record.problem_json)
        configuration = Configuration.parse(record.configuration)
        return families.family(record.family).complexity(problem, configuration, record.gpu)
    except (GemmtuneError, LookupError):
        return None
