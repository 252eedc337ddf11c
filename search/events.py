"""What a study tells those who watch it: the command line's live display, a log, a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from gemmtune.db import TrialRecord
from gemmtune.device.base import Device
from gemmtune.space.problem import Problem

if TYPE_CHECKING:
    from gemmtune.search.study import StudyResult


class Observer(Protocol):
    """Called from the thread that runs the study, between its steps: whoever is slow slows the study down.

    An exception raised here ends the call; everything that had finished is recorded.
    """

    def study_started(self, problem: Problem, device: Device, valid: int, raw: int, budget: int, resumed: int) -> None:
        """A study begins: ``valid`` configurations of ``raw``, ``budget`` trials of which ``resumed`` are done."""
        ...

    def borrowed(self, sources: Sequence[str]) -> None:
        """The study starts from configurations of other studies: a line for each source, how many and whose."""
        ...

    def trial_finished(
        self, record: TrialRecord, best: TrialRecord | None, done: int, budget: int, counts: Mapping[str, int]
    ) -> None:
        """A trial has been recorded: the ``best`` so far, trials ``done`` (resumed ones included), outcomes by kind."""
        ...

    def finals_started(self, problem: Problem, candidates: int) -> None:
        """The best ``candidates`` are about to be measured against each other."""
        ...

    def study_finished(self, result: StudyResult) -> None:
        """The study is over, at its budget, its time limit, or by Ctrl-C (``result.interrupted``)."""
        ...


class Silent:
    """An observer that says nothing; a base for those who care about some of the events."""

    def study_started(self, problem: Problem, device: Device, valid: int, raw: int, budget: int, resumed: int) -> None:
        """Nothing."""

    def borrowed(self, sources: Sequence[str]) -> None:
        """Nothing."""

    def trial_finished(
        self, record: TrialRecord, best: TrialRecord | None, done: int, budget: int, counts: Mapping[str, int]
    ) -> None:
        """Nothing."""

    def finals_started(self, problem: Problem, candidates: int) -> None:
        """Nothing."""

    def study_finished(self, result: StudyResult) -> None:
        """Nothing."""
