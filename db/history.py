"""The history: every study and trial, in SQLite or any database that SQLAlchemy reaches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, func, select

from gemmtune.db import models as m
from gemmtune.db import queries, ranking, schema, store
from gemmtune.db.engine import LARGEST, WRITE, open_engine, resolve, translated, where
from gemmtune.db.filter import Filter
from gemmtune.db.queries import DONE
from gemmtune.db.reading import by_id
from gemmtune.db.records import (
    ExportRecord,
    FailureGroup,
    MeasurementRecord,
    MergeReport,
    StudyRecord,
    StudySpec,
    TrialRecord,
    VerificationData,
)
from gemmtune.db.study import Study
from gemmtune.space.errors import DatabaseError

LOCK_TIMEOUT = 120.0
"""Seconds to wait for another process's lock: a night's study outlives a minute of copying or merging."""


class History:
    """An open history; a context manager. It is created, or brought to the current schema, when it is opened.

    Args:
        url: a SQLAlchemy URL or the path of a SQLite file; by default ``$GEMMTUNE_DB``, else the user's own.
        create: whether a file that does not exist is made, and a database shared with another program; without it,
            that is an error: for those who only read.
        timeout: seconds to wait for another process's lock; after a few of them, the wait is logged as a warning.

    Raises:
        DatabaseError: the database does not exist, cannot be opened, is of a newer schema, or is not a history; every
            method raises it where the database is locked, read-only, full, damaged or out of reach.
    """

    def __init__(self, url: str | Path | None = None, *, create: bool = True, timeout: float = LOCK_TIMEOUT) -> None:
        self.url = resolve(url, create=create)
        self.timeout = timeout
        self._moment = 0.0
        self._engine = open_engine(self.url, timeout)
        self._writer = self._engine.execution_options(**{WRITE: True})
        try:
            with translated(self.url, timeout):
                schema.prepare(self._engine, timeout, create=create)
        except BaseException:
            self._engine.dispose()
            raise

    @property
    def location(self) -> str:
        """The file's path, or the URL without its password."""
        return where(self.url)

    def close(self) -> None:
        """Close every connection; safe to call twice."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection on one snapshot of the database, for reading."""
        with translated(self.url, self.timeout), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A connection in one writing transaction, committed at the end and undone by any exception.

        A lock is waited for here, at its beginning, and nowhere later.
        """
        with translated(self.url, self.timeout), self._writer.begin() as connection:
            yield connection

    def now(self) -> float:
        """Seconds since the epoch, but never earlier than the time before: moments of a run keep their order."""
        self._moment = max(self._moment, time.time())
        return self._moment

    # -------------------------------------------------------------------------------------------------------- studies

    def open_study(self, spec: StudySpec) -> Study:
        """The study of this spec: the one that is there, or a new one.

        The same spec, environment included, resumes (of several such, brought together by a merge, the one with the
        most trials). The same spec in another environment is a new study, whose parent is the latest of the older ones.

        Raises:
            ProblemError: the problem's fields are missing or out of range.
            UnknownNameError: its kind is not registered.
        """
        with self.writing() as connection:
            digest = store.spec_digest(spec)
            environment = store.add_environment(connection, spec.environment)
            known = select(m.study).where(m.study.c.spec == digest).limit(1)
            done = select(func.count()).where(m.trial.c.study_id == m.study.c.id, m.trial.c.state == DONE)
            same = known.where(m.study.c.environment_id == environment)
            same = same.order_by(done.scalar_subquery().desc(), m.study.c.created, m.study.c.uuid)
            found = connection.execute(same).first()
            if found is not None:
                study_id, uuid, parent_uuid = found.id, found.uuid, found.parent_uuid
            else:
                parent = connection.execute(known.order_by(m.study.c.created.desc(), m.study.c.uuid)).first()
                uuid, parent_uuid = store.new_uuid(), parent.uuid if parent else None
                row = {
                    "uuid": uuid,
                    "parent_uuid": parent_uuid,
                    "spec": digest,
                    "problem_id": store.add_problem(connection, spec.problem_key, spec.problem_json),
                    "gpu_id": store.add_gpu(connection, spec.gpu),
                    "environment_id": environment,
                    "kind": spec.kind,
                    "regime": spec.regime,
                    "cache": spec.cache,
                    "families": list(spec.families),
                    "strategy": spec.strategy,
                    "seed": spec.seed,
                    # Later than its parent, also where the clock was set back: the newest environment counts.
                    "created": max(self.now(), parent.created + store.TICK) if parent else self.now(),
                }
                study_id = store.add(connection, m.study, row)
            parent_id = connection.scalar(select(m.study.c.id).where(m.study.c.uuid == parent_uuid))
            return Study(self, spec, study_id, uuid, parent_id, resumed=found is not None)

    # -------------------------------------------------------------------------------------------------------- queries

    def studies(
        self, *, gpu: str | None = None, shape: str | None = None, dtype: str | None = None, kind: str | None = None,
        regime: str | None = None, cache: str | None = None, limit: int | None = 100,
    ) -> list[StudyRecord]:  # fmt: skip
        """Studies, the newest first. ``kind`` is the device kind; the other filters as in :meth:`trials`."""
        with self.reading() as connection:
            found = queries.studies(connection, Filter(gpu, shape, dtype, None, kind, regime, cache), limit)
            return ranking.with_winners(connection, found)

    def trials(
        self, *, gpu: str | None = None, shape: str | None = None, dtype: str | None = None, family: str | None = None,
        outcome: str | None = None, kind: str | None = None, regime: str | None = None, cache: str | None = None,
        study_id: int | None = None, limit: int | None = 100,
    ) -> list[TrialRecord]:  # fmt: skip
        """Finished trials, the newest study first, each study's latest trial first.

        ``gpu`` is a short or full name or a device key, ``shape`` is like "4096x4096x4096", ``kind`` the device kind.

        Raises:
            UnknownNameError: a GPU or dtype that neither the history nor gemmtune knows.
            ProblemError: a malformed shape.
        """
        wanted = Filter(gpu, shape, dtype, family, kind, regime, cache, study_id=study_id)
        with self.reading() as connection:
            return queries.trials(connection, wanted, outcome, limit)

    def failures(
        self, *, gpu: str | None = None, shape: str | None = None, dtype: str | None = None, family: str | None = None,
        outcome: str | None = None, kind: str | None = None, regime: str | None = None, cache: str | None = None,
        limit: int | None = 20,
    ) -> list[FailureGroup]:  # fmt: skip
        """Failed trials by outcome and kind of detail, the most frequent kind first, each with its latest example.

        Abandoned and pruned ones are given where ``outcome`` asks for them alone: a study cut them short.
        """
        with self.reading() as connection:
            return queries.failures(connection, Filter(gpu, shape, dtype, family, kind, regime, cache), outcome, limit)

    def outcomes(
        self, *, gpu: str | None = None, shape: str | None = None, dtype: str | None = None, family: str | None = None,
        kind: str | None = None, regime: str | None = None, cache: str | None = None,
    ) -> dict[str, int]:  # fmt: skip
        """How many finished trials ended in each way, the most frequent first; filters as in :meth:`trials`."""
        with self.reading() as connection:
            return queries.outcomes(connection, Filter(gpu, shape, dtype, family, kind, regime, cache))

    def trial(self, trial_id: int) -> TrialRecord | None:
        """One trial by its id, or None."""
        if abs(trial_id) > LARGEST:
            return None
        with self.reading() as connection:
            return by_id(connection, [trial_id]).get(trial_id)

    def named(self, start: str) -> list[TrialRecord]:
        """Finished trials whose uuid or cubin hash starts with these hex digits, the latest first."""
        with self.reading() as connection:
            return queries.named(connection, start)

    def numbered(self, study_id: int, number: int) -> list[TrialRecord]:
        """The finished trials of this number in a study; several only in a history merged from copies of it."""
        with self.reading() as connection:
            return queries.numbered(connection, study_id, number)

    def study(self, study_id: int) -> StudyRecord | None:
        """One study by its id, or None."""
        if abs(study_id) > LARGEST:
            return None
        with self.reading() as connection:
            found = queries.studies(connection, Filter(study_id=study_id), None)
            return next(iter(ranking.with_winners(connection, found)), None)

    def find(
        self, problem_key: str, gpu_key: str | None = None, regime: str | None = None, configuration_key: str = ""
    ) -> list[TrialRecord]:
        """Finished trials of one configuration for one problem, the latest first; what ``query why`` asks."""
        with self.reading() as connection:
            return queries.find(connection, Filter(gpu_key, regime=regime, problem_key=problem_key), configuration_key)

    def best(
        self, *, gpu: str | None = None, shape: str | None = None, dtype: str | None = None, family: str | None = None,
        kind: str | None = None, regime: str | None = None, cache: str | None = None, limit: int | None = 20,
    ) -> list[TrialRecord]:  # fmt: skip
        """The leading correct kernels with their ``rank``; filters as in :meth:`trials`.

        Ranks count within (device kind, GPU key, environment, regime, cache, problem), by the ratio to the baseline,
        or by time where no baseline was timed; finalists, whose measurement among each other counts, go before the
        others, and of those that the interval cannot tell from the quickest the simplest is first. The ``limit``
        rows are shared out evenly among these boards, the most recent first, at least one to each while they last.
        """
        with self.reading() as connection:
            return ranking.best(connection, Filter(gpu, shape, dtype, family, kind, regime, cache), limit)

    def best_kernels(
        self, gpu_key: str | None = None, device_kind: str | None = None, regime: str | None = None, *,
        cache: str | None = None, shape: str | None = None, dtype: str | None = None, family: str | None = None,
    ) -> list[TrialRecord]:  # fmt: skip
        """What a pack is made of: one kernel for each (device kind, GPU key, regime, cache, problem).

        It is the first of :meth:`best` in the newest environment whose leader was measured as a finalist, else in the
        newest environment. ``gpu_key`` may be a short or full name too.
        """
        with self.reading() as connection:
            return ranking.best_kernels(connection, Filter(gpu_key, shape, dtype, family, device_kind, regime, cache))

    def verification(self, trial_id: int) -> VerificationData | None:
        """The proof of a trial's kernel with every check it consists of, or None where there is none."""
        with self.reading() as connection:
            return queries.verification(connection, trial_id)

    def measurements(self, trial_id: int) -> list[MeasurementRecord]:
        """Every measurement of a trial with its samples, in the order they were made."""
        with self.reading() as connection:
            return queries.measurements(connection, trial_id)

    # --------------------------------------------------------------------------------------------------------- packs

    def record_export(self, name: str, manifest_sha256: str, contents: Sequence[tuple[str, bytes]]) -> str:
        """Remember an exported pack with its files, given as (sha256, bytes); the export's uuid.

        Raises:
            DatabaseError: a file does not have the hash it is given under.
        """
        with self.writing() as connection:
            return store.add_export(connection, name, manifest_sha256, dict(contents), self.now())

    def exports(self) -> list[ExportRecord]:
        """Exported packs, the latest first."""
        with self.reading() as connection:
            return queries.exports(connection)

    def cubin(self, sha256: str) -> bytes | None:
        """A cubin (or another file of a pack) that was exported, by its hash; or None."""
        with self.reading() as connection:
            return connection.scalar(select(m.cubin.c.data).where(m.cubin.c.sha256 == sha256))

    # ------------------------------------------------------------------------------------------------------ transfer

    def export(self, path: str | Path) -> int:
        """Write everything finished to a compressed file for :meth:`merge`; how many rows it holds.

        The file appears whole or not at all, and replaces one of the same name.

        Raises:
            DatabaseError: the file cannot be written.
        """
        target = Path(path)
        own = Path(self.url.database or "")
        if target.exists() and own.exists() and target.samefile(own):
            raise DatabaseError(f"The file {target} is the history itself: export to another file.")
        from gemmtune.db.transfer import write

        with self.reading() as connection:
            return write(connection, target)

    def merge(self, path: str | Path) -> MergeReport:
        """Add what another history exported and this one lacks, in one transaction; merging again adds nothing.

        Raises:
            DatabaseError: the file is missing, truncated, altered, of a newer schema or no export; nothing was changed.
        """
        from gemmtune.db.merge import merge

        with self.writing() as connection:
            return merge(connection, Path(path))
