"""What a page about a study is made of: its trials in order, the measure that ranks them, what each tile is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gemmtune.db import History
from gemmtune.db.records import CORRECT, MeasurementRecord, StudyRecord, TrialRecord, VerificationData
from gemmtune.db.samples import Sample
from gemmtune.db.standing import standing
from gemmtune.search.importance import TRIALS, Knob, of_family
from gemmtune.space import families
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import GemmtuneError
from gemmtune.space.family import Traits
from gemmtune.space.problem import Problem, problem_from_json


@dataclass(frozen=True)
class Measure:
    """The figure by which a study's trials compare: the ratio to the baseline where one was timed, else the time.

    A ratio is baseline time / our time, so that higher is better; a time is in microseconds, lower is better.
    """

    ratio: bool
    estimated: bool = False
    baseline: str = ""

    @property
    def label(self) -> str:
        """For an axis."""
        said = f"speed, {self.baseline or 'baseline'} = 1" if self.ratio else "time, us"
        return f"{said} (estimated)" if self.estimated else said

    @property
    def short(self) -> str:
        """For a heading of a column."""
        return "speed" if self.ratio else "us"

    def of(self, trial: TrialRecord) -> float | None:
        """The trial's figure, as its own measurement or the one among the finalists gives it; None without one."""
        timing = trial.timing
        return None if timing is None else self._finite(timing.ratio, timing.us)

    def of_search(self, trial: TrialRecord) -> float | None:
        """The figure of the trial's own measurement, as the search saw it; None without one."""
        return self._finite(trial.ratio, trial.us)

    def _finite(self, ratio: float | None, us: float | None) -> float | None:
        value = ratio if self.ratio else us
        return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Material:
    """A study with its trials, in the order they were proposed."""

    study: StudyRecord
    trials: Sequence[TrialRecord]
    proof: VerificationData | None
    measurements: Sequence[MeasurementRecord]
    """Of the winner, in the order they were made."""

    @cached_property
    def ranking(self) -> list[TrialRecord]:
        """The correct and timed trials, the winner first; see :func:`gemmtune.db.standing.standing`."""
        return standing(self.trials)

    @property
    def winner(self) -> TrialRecord | None:
        """The best trial; None where none is right."""
        return self.ranking[0] if self.ranking else None

    @cached_property
    def measure(self) -> Measure:
        """What its trials are compared by."""
        rated = bool(self.ranking) and all(t.timing and t.timing.ratio is not None for t in self.ranking)
        names = [t.baseline for t in self.ranking if t.baseline]
        return Measure(rated, any(t.estimated for t in self.ranking), names[0] if names else "")

    @cached_property
    def problem(self) -> Problem | None:
        """The problem; None where this version does not know its kind."""
        try:
            return problem_from_json(self.trials[0].problem_json) if self.trials else None
        except (GemmtuneError, LookupError):
            return None

    @cached_property
    def families(self) -> list[str]:
        """The families that were tried, in the order the study names them."""
        tried = {t.family for t in self.trials}
        named = [name for name in self.study.families if name in tried]
        return [*named, *sorted(tried.difference(named))]

    def correct(self, family: str) -> list[TrialRecord]:
        """The ranked trials of one family that have the measure, best first."""
        return [t for t in self.ranking if t.family == family and self.measure.of(t) is not None]

    def importance(self, family: str) -> tuple[Knob, ...]:
        """How much each knob of a family mattered, the most important first; empty where too few trials tell.

        See :mod:`gemmtune.search.importance`.
        """
        if family not in self._importance:
            correct = self.correct(family)
            chosen = correct[:: max(1, -(-len(correct) // TRIALS))]
            group = [Sample(t.study_id, family, t.configuration, t.timing.score) for t in chosen if t.timing]
            self._importance[family] = of_family(family, group).knobs
        return self._importance[family]

    @cached_property
    def _importance(self) -> dict[str, tuple[Knob, ...]]:
        return {}

    def traits(self, trial: TrialRecord) -> Traits | None:
        """Tile, threads and the like of a trial; None where this version does not know its family or knobs."""
        if trial.id not in self._traits:
            self._traits[trial.id] = self._worked_out(trial)
        return self._traits[trial.id]

    @cached_property
    def _traits(self) -> dict[int, Traits | None]:
        return {}

    def _worked_out(self, trial: TrialRecord) -> Traits | None:
        if self.problem is None:
            return None
        try:
            family = families.family(trial.family)
            return family.traits(self.problem, Configuration.parse(trial.configuration), trial.gpu)
        except (GemmtuneError, LookupError):
            return None


def gather(history: History, study: StudyRecord) -> Material:
    """Read a study's trials, and the winner's proof and times.

    Raises:
        DatabaseError: the database fails.
    """
    trials = sorted(history.trials(study_id=study.id, limit=None), key=lambda t: (t.number, t.finished or 0.0, t.id))
    best = next(iter(standing(trials)), None)
    return Material(
        study,
        trials,
        history.verification(best.id) if best else None,
        history.measurements(best.id) if best else [],
    )


def knobs(trials: Sequence[TrialRecord]) -> dict[str, list[int | str]]:
    """The values that each knob of one family's trials took, sorted, by knob in the family's order."""
    out: dict[str, set[int | str]] = {}
    for trial in trials:
        for name, value in Configuration.parse(trial.configuration).items():
            out.setdefault(name, set()).add(value)
    return {name: sorted(values, key=lambda v: (isinstance(v, str), v)) for name, values in out.items()}


def shared_knobs(trials: Sequence[TrialRecord]) -> dict[str, list[int | str]]:
    """The same of the knobs that all of them have: a family may have gained one while its study went on."""
    everywhere = [set(Configuration.parse(trial.configuration)) for trial in trials]
    return {name: values for name, values in knobs(trials).items() if all(name in names for names in everywhere)}


def is_correct(trial: TrialRecord) -> bool:
    """Whether it ended well."""
    return trial.outcome == CORRECT
