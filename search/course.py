"""The course of a study: propose in a fixed rhythm, compile ahead, run in order, record each trial.

A trial whose first attempt was disturbed (its time is no answer, or the machine failed) waits until the others of its
batch are through, and has one more; what is recorded is the last attempt alone. A study that is stopped meanwhile finds
a gap among its trials when it goes on, and fills it.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from gemmtune.db import Study, TrialRecord, TrialResult
from gemmtune.device.base import Device, Outcome
from gemmtune.search.events import Observer
from gemmtune.search.ranking import Lessons, best_first
from gemmtune.search.rhythm import AHEAD, BATCH, Rhythm
from gemmtune.search.strategy import Result, Strategy, make_strategy
from gemmtune.search.transfer import Loan, told
from gemmtune.search.trial import Attempt, Prepared, TrialRunner
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ConfigurationError, DatabaseError, ToolchainError
from gemmtune.space.space import Space

ATTEMPTS = 2
"""Attempts at a trial: the second one only where the first was disturbed, after all others of its batch."""
DEAD_DEVICE = 8
"""Attempts in a row that fail for reasons of the machine, not the kernel, before the study gives up."""


@dataclass(frozen=True)
class Plan:
    """What a study is to do.

    ``budget`` trials in all (earlier runs' included), until ``deadline`` (monotonic seconds). ``horizon`` is the number
    of trials that the strategy reckons with; it is that of the budget, but where time is the only bound. ``loans`` are
    configurations that it starts from. With ``confidence`` it ends before its
    budget once the strategy gives that probability to being within 1 % of the best.
    """

    strategy: str
    seed: int
    budget: int
    horizon: int
    loans: tuple[Loan, ...] = ()
    confidence: float | None = None
    deadline: float | None = None


@dataclass
class _Slot:
    """One trial of a batch: recorded by an earlier run, or claimed and being prepared.

    ``earlier`` is a first attempt that was disturbed, and ``seconds`` what it took; such a trial waits for a second one
    until all others of its batch are through.
    """

    number: int
    index: int
    record: TrialRecord | None = None
    trial_id: int = 0
    prepared: Prepared | None = None
    earlier: Attempt | None = None
    seconds: float = 0.0


class _DivergedError(Exception):
    """The recorded trials are not what the strategy proposes: the budget, the knobs or the strategy's code changed."""


class Course:
    """One study on its way.

    After :meth:`run`, ``records`` holds every finished trial, ``resumed`` how many of them earlier runs left,
    ``counts`` their outcomes, ``interrupted`` tells whether Ctrl-C ended it, and ``database_seconds`` what claiming and
    recording trials took.
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
        self.database_seconds = 0.0
        self._best: TrialRecord | None = None
        self._lessons = Lessons()
        self._batches: deque[list[_Slot]] = deque()
        self._recorded: dict[int, TrialRecord] = {}
        self._tried: set[str] = set()
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
        if self.plan.loans:
            self.observer.borrowed(told(self.plan.loans))
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
        self._tried = {record.configuration_key for record in self.records}
        try:
            self._follow(self._strategy())
        except _DivergedError:  # go on from what is recorded, as from a larger first batch
            self.study.release_claims()
            self._batches.clear()
            self._planned = len(self.records)
            self._next_number = max(record.number for record in self.records) + 1
            self._recorded, self._tried, self._lessons = {}, set(), Lessons()
            strategy = self._strategy()
            strategy.observe(self._results(self.records))
            self._follow(strategy)

    def _strategy(self) -> Strategy:
        warm = [loan.index for loan in self.plan.loans]
        return make_strategy(
            self.plan.strategy, self.space, self.plan.seed, self.plan.horizon, warm, self.plan.confidence
        )

    def _results(self, records: Sequence[TrialRecord]) -> list[Result]:
        """Those of the trials that are in the space."""
        results = []
        for record in records:
            try:
                results.append(self._result(self.space.index(Configuration.parse(record.configuration)), record))
            except ConfigurationError:
                continue
        return results

    # -------------------------------------------------------------------------------------------------- the rhythm

    def _follow(self, strategy: Strategy) -> None:
        with Rhythm(strategy) as rhythm:
            for _ in range(AHEAD + 1):
                self._ask(rhythm, [])
            while self._next_batch(rhythm):
                batch = self._batches[0]
                for attempt in range(ATTEMPTS):
                    for slot in batch:
                        if slot.record is not None:
                            continue
                        if self._late:
                            return
                        self._try(slot, last=attempt == ATTEMPTS - 1)
                        self._take(rhythm, wait=False)
                self._batches.popleft()
                self._ask(rhythm, [self._result(slot.index, slot.record) for slot in batch if slot.record])

    @property
    def _late(self) -> bool:
        return self.plan.deadline is not None and time.monotonic() >= self.plan.deadline

    def _ask(self, rhythm: Rhythm, results: list[Result]) -> None:
        """Ask for the next batch, chosen with ``results`` known; nothing where budget or time are used up."""
        n = min(BATCH, self.plan.budget - self._planned)
        if n > 0 and not self._late:
            self._planned += n
            rhythm.ask(n, results)

    def _next_batch(self, rhythm: Rhythm) -> bool:
        """Wait until there is a batch to run; False where none will come."""
        while not self._batches and rhythm.coming:
            self._take(rhythm, wait=True)
        return bool(self._batches)

    def _take(self, rhythm: Rhythm, *, wait: bool) -> None:
        """Claim the next proposal, where it is ready, and have it compiled."""
        batch = []
        for index in rhythm.take(wait=wait) or ():
            slot = _Slot(self._next_number, index, self._recorded.get(self._next_number))
            configuration = self.space[index]
            if slot.record is None and configuration.key in self._tried:
                raise _DivergedError
            if slot.record is not None and slot.record.configuration_key != configuration.key:
                raise _DivergedError
            self._next_number += 1
            batch.append(slot)
        self._claim([slot for slot in batch if slot.record is None])
        if batch:
            self._batches.append(batch)

    def _claim(self, slots: list[_Slot]) -> None:
        """Reserve what is new, and start compiling it."""
        if not slots:
            return
        wanted = [(slot.number, self.space[slot.index]) for slot in slots]
        with self.writing():
            claimed = self.study.claim_all(wanted)
        for slot, trial_id, (_, configuration) in zip(slots, claimed, wanted, strict=True):
            slot.trial_id = trial_id
            slot.prepared = self.runner.prepare(configuration)

    def _try(self, slot: _Slot, *, last: bool) -> None:
        """Run one claimed trial, and record it, unless it was disturbed and this attempt is not the ``last``."""
        if slot.prepared is None:
            raise RuntimeError(f"Trial {slot.number} was never prepared.")
        attempt = self.runner.run(slot.prepared, slot.number, self._best)
        now = time.monotonic()
        slot.seconds += now - self._last
        self._last = now
        self._check_alive(attempt)
        if attempt.disturbed and not last:
            slot.earlier = attempt
            return
        if slot.earlier is not None:
            attempt = attempt.after(slot.earlier)
        slot.prepared = slot.earlier = None  # a cubin in memory is of no use any more
        seconds = {**attempt.result.seconds, "wall": slot.seconds}
        slot.record = record = self._record(slot.trial_id, replace(attempt.result, seconds=seconds))
        self.records.append(record)
        self._count(record)
        self.runner.remember(attempt.binary, record)
        self.observer.trial_finished(record, self._best, len(self.records), self.plan.budget, self.counts)

    def _check_alive(self, attempt: Attempt) -> None:
        """Give up where this attempt is one too many in a row that the machine is to blame for; it is not recorded."""
        self._failures = self._failures + 1 if attempt.result.outcome == Outcome.INFRASTRUCTURE else 0
        if self._failures == DEAD_DEVICE:
            raise ToolchainError(
                f"{self.device.name} failed {DEAD_DEVICE} times in a row for reasons of its own, at last: "
                f"{attempt.result.detail.rstrip('.') or 'no reason given'}; see to it, then run the same command to go "
                f"on."
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Count the time of what is written to the history within."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.database_seconds += time.perf_counter() - began

    def _record(self, trial_id: int, result: TrialResult) -> TrialRecord:
        """Finish the trial, and read it back: what counts is what a resumed study will read."""
        with self.writing():
            self.study.finish(trial_id, result)
        record = self.study.history.trial(trial_id)
        if record is None:
            raise DatabaseError(f"Trial {trial_id} vanished while it was being recorded: let one process own a study.")
        return record

    def _count(self, record: TrialRecord) -> None:
        self.counts[record.outcome] += 1
        contenders = [record] if self._best is None else [self._best, record]
        self._best = next(iter(best_first(contenders)), self._best)

    def _result(self, index: int, record: TrialRecord) -> Result:
        return Result(index, record.outcome, self._lessons.of(record))
