"""The course of a study: propose in fixed batches, compile ahead, run in order, record each trial.

Batches of :data:`BATCH` are proposed :data:`AHEAD` batches ahead of the device, whatever machine this is: batch b is
chosen from the results of batches up to b - AHEAD - 1, so that 8 to 12 kernels are being compiled or wait while one
runs. The rhythm of ``propose`` and ``observe`` is therefore a constant, and a study that is started again replays it
over the recorded trials: its strategy ends up where it was, and goes on as if nothing had happened.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, replace

from gemmtune.db import Study, TrialRecord, TrialResult
from gemmtune.device.base import Device, Outcome
from gemmtune.search.events import Observer
from gemmtune.search.ranking import best_first, objective
from gemmtune.search.strategy import Result, Strategy, make_strategy
from gemmtune.search.trial import Prepared, TrialRunner
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ConfigurationError, DatabaseError, ToolchainError
from gemmtune.space.space import Space

BATCH = 4
AHEAD = 2
DEAD_DEVICE = 8
"""Trials in a row that fail for reasons of the machine, not the kernel, before the study gives up."""


@dataclass(frozen=True)
class Plan:
    """What a study is to do.

    ``budget`` trials in all (earlier runs' included), until ``deadline`` (monotonic seconds). ``horizon`` is the number
    of trials that the strategy reckons with; it is that of the budget, but where time is the only bound.
    """

    strategy: str
    seed: int
    budget: int
    horizon: int
    deadline: float | None = None


@dataclass
class _Slot:
    """One trial of a batch: recorded by an earlier run, or claimed and being prepared."""

    number: int
    index: int
    record: TrialRecord | None = None
    trial_id: int = 0
    prepared: Prepared | None = None


class _DivergedError(Exception):
    """The recorded trials are not what the strategy proposes: the budget, the knobs or the strategy's code changed."""


class Course:
    """One study on its way.

    After :meth:`run`, ``records`` holds every finished trial, ``resumed`` how many of them earlier runs left,
    ``counts`` their outcomes, and ``interrupted`` tells whether Ctrl-C ended it.
    """

    def __init__(
        self, space: Space, device: Device, study: Study, runner: TrialRunner, plan: Plan, observer: Observer
    ) -> None:
        self.space = space
        self.device = device
        self.study = study
        self.runner = runner
        self.plan = plan
        self.observer = observer
        self.records: list[TrialRecord] = []
        self.resumed = 0
        self.counts: Counter[str] = Counter()
        self.interrupted = False
        self._best: TrialRecord | None = None
        self._batches: deque[list[_Slot]] = deque()
        self._recorded: dict[int, TrialRecord] = {}
        self._planned = 0
        self._next_number = 0
        self._failures = 0
        self._last = time.monotonic()

    def run(self) -> None:
        """Try what is left of the budget, unless the deadline or Ctrl-C comes first.

        Raises:
            ToolchainError: nothing can be compiled or run here, or the device keeps failing.
        """
        self.study.release_claims()
        self.records = list(self.study.trials())
        self.resumed = len(self.records)
        for record in self.records:
            self._count(record)
        self.observer.study_started(
            self.space.problem, self.device, len(self.space), self.space.raw_size, self.plan.budget, self.resumed
        )
        try:
            self.runner.recall(self.records)
            self._start()
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self.study.release_claims()

    def _start(self) -> None:
        self._last = time.monotonic()
        self._recorded = {record.number: record for record in self.records}
        try:
            if sorted(self._recorded) != list(range(len(self.records))):
                raise _DivergedError
            self._follow(self._strategy())
        except _DivergedError:  # nothing was claimed yet: go on from what is recorded, as from a larger first batch
            self._batches.clear()
            self._planned = len(self.records)
            self._next_number = max(self._recorded) + 1
            self._recorded = {}
            strategy = self._strategy()
            strategy.observe(self._known())
            self._follow(strategy)

    def _strategy(self) -> Strategy:
        return make_strategy(self.plan.strategy, self.space, self.plan.seed, self.plan.horizon)

    def _known(self) -> list[Result]:
        """The recorded trials that are still in the space."""
        known = []
        for record in self.records:
            try:
                known.append(_result(self.space.index(Configuration.parse(record.configuration)), record))
            except ConfigurationError:
                continue
        return known

    # -------------------------------------------------------------------------------------------------- the rhythm

    def _follow(self, strategy: Strategy) -> None:
        while True:
            while len(self._batches) <= AHEAD:
                batch = self._propose(strategy)
                if not batch:
                    break
                self._batches.append(batch)
            if not self._batches:
                return
            results = []
            for slot in self._batches[0]:
                if self._late:
                    return
                results.append(_result(slot.index, slot.record or self._try(slot)))
            strategy.observe(results)
            self._batches.popleft()

    @property
    def _late(self) -> bool:
        return self.plan.deadline is not None and time.monotonic() >= self.plan.deadline

    def _propose(self, strategy: Strategy) -> list[_Slot]:
        """The next batch, claimed and compiling; empty where budget, time or space are used up."""
        n = min(BATCH, self.plan.budget - self._planned)
        if n <= 0 or self._late:
            return []
        batch = []
        for index in strategy.propose(n):
            slot = _Slot(self._next_number, index, self._recorded.get(self._next_number))
            configuration = self.space[index]
            if slot.record is None:
                slot.trial_id = self.study.claim(slot.number, configuration)
                slot.prepared = self.runner.prepare(configuration)
            elif slot.record.configuration_key != configuration.key:
                raise _DivergedError
            self._next_number += 1
            self._planned += 1
            batch.append(slot)
        return batch

    def _try(self, slot: _Slot) -> TrialRecord:
        """Run one claimed trial and record it."""
        if slot.prepared is None:
            raise RuntimeError(f"Trial {slot.number} was never prepared.")
        attempt = self.runner.run(slot.prepared, slot.number, self._best)
        slot.prepared = None  # a cubin in memory is of no use any more
        now = time.monotonic()
        seconds = {**attempt.result.seconds, "wall": now - self._last}
        self._last = now
        record = self._record(slot.trial_id, replace(attempt.result, seconds=seconds))
        self.records.append(record)
        self._count(record)
        self.runner.remember(attempt.binary, record)
        self.observer.trial_finished(record, self._best, len(self.records), self.plan.budget, self.counts)
        self._failures = self._failures + 1 if record.outcome == Outcome.INFRASTRUCTURE else 0
        if self._failures == DEAD_DEVICE:
            raise ToolchainError(
                f"{self.device.name} failed {DEAD_DEVICE} trials in a row for reasons of its own, at last: "
                f"{record.detail or 'no reason given'}: see to it, then run the same command to go on."
            )
        return record

    def _record(self, trial_id: int, result: TrialResult) -> TrialRecord:
        """Finish the trial, and read it back: what counts is what a resumed study will read."""
        self.study.finish(trial_id, result)
        record = self.study.history.trial(trial_id)
        if record is None:
            raise DatabaseError(f"Trial {trial_id} vanished while it was being recorded: let one process own a study.")
        return record

    def _count(self, record: TrialRecord) -> None:
        self.counts[record.outcome] += 1
        contenders = [record] if self._best is None else [self._best, record]
        self._best = next(iter(best_first(contenders)), self._best)


def _result(index: int, record: TrialRecord) -> Result:
    return Result(index, record.outcome, objective(record))
