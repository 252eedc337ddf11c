"""The history: every study and trial, in SQLite or any database that SQLAlchemy reaches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gemmtune.db import models as m
from gemmtune.db import queries, schema, store
from gemmtune.db.engine import WRITE, open_engine, resolve, translated, where
from gemmtune.db.queries import DONE, Filter
from gemmtune.db.records import FailureGroup, StudyRecord, StudySpec, TrialRecord
from gemmtune.db.study import Study


class History:
    """An open history; a context manager. It is created, or brought to the current schema, when it is opened.

    Args:
        url: a SQLAlchemy URL or the path of a SQLite file; by default ``$GEMMTUNE_DB``, else the user's own.
        timeout: seconds to wait for another process's lock.

    Raises:
        DatabaseError: the database cannot be opened, is of a newer schema, or is not a history; every method raises it
            where the database is locked, read-only, full, damaged or out of reach.
    """

    def __init__(self, url: str | Path | None = None, *, timeout: float = 30.0) -> None:
        self.url = resolve(url)
        self.timeout = timeout
        self._engine = open_engine(self.url, timeout)
        self._writer = self._engine.execution_options(**{WRITE: True})
        try:
            with translated(self.url, timeout):
                schema.prepare(self._engine, timeout)
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
    def reading(self) -> Iterator[Session]:
        """A session on one snapshot of the database, for reading."""
        with translated(self.url, self.timeout), Session(self._engine, autoflush=False) as session, session.begin():
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session in one writing transaction, committed at the end and undone by any exception."""
        with translated(self.url, self.timeout), Session(self._writer) as session, session.begin():
            yield session

    # -------------------------------------------------------------------------------------------------------- studies

    def open_study(self, spec: StudySpec) -> Study:
        """The study of this spec: the one that is there, or a new one.

        The same spec, environment included, resumes (of several such, brought together by a merge, the one with the
        most trials). The same spec in another environment is a new study, whose parent is the latest of the older ones.

        Raises:
            ProblemError: the problem's fields are missing or out of range.
            UnknownNameError: its kind is not registered.
        """
        with self.writing() as session:
            digest = store.spec_digest(spec)
            environment = store.add_environment(session, spec.environment)
            done = select(func.count()).where(m.Trial.study_id == m.Study.id, m.Trial.state == DONE).scalar_subquery()
            same = select(m.Study).where(m.Study.spec == digest, m.Study.environment_id == environment)
            study = session.scalar(same.order_by(done.desc(), m.Study.created, m.Study.uuid).limit(1))
            resumed = study is not None
            if study is None:
                study = m.Study(
                    uuid=store.new_uuid(),
                    parent_uuid=session.scalar(
                        select(m.Study.uuid)
                        .where(m.Study.spec == digest)
                        .order_by(m.Study.created.desc(), m.Study.uuid)
                        .limit(1)
                    ),
                    spec=digest,
                    problem_id=store.add_problem(session, spec.problem_key, spec.problem_json),
                    gpu_id=store.add_gpu(session, spec.gpu),
                    environment_id=environment,
                    kind=spec.kind,
                    regime=spec.regime,
                    cache=spec.cache,
                    families=list(spec.families),
                    strategy=spec.strategy,
                    seed=spec.seed,
                    created=time.time(),
                )
                session.add(study)
                session.flush()
            parent = session.scalar(select(m.Study.id).where(m.Study.uuid == study.parent_uuid))
            return Study(self, spec, study.id, study.uuid, parent, resumed)

    # -------------------------------------------------------------------------------------------------------- queries

    def studies(
        self, *, gpu: str | None = None, shape: str | None = None, dtype: str | None = None, kind: str | None = None,
        regime: str | None = None, cache: str | None = None, limit: int | None = 100,
    ) -> list[StudyRecord]:  # fmt: skip
        """Studies, the newest first. ``kind`` is the device kind; the other filters as in :meth:`trials`."""
        with self.reading() as session:
            return queries.studies(session, Filter(gpu, shape, dtype, None, kind, regime, cache), limit)

    def trials(
        self, *, gpu: str | None = None, shape: str | None = None, dtype: str | None = None, family: str | None = None,
        outcome: str | None = None, kind: str | None = None, regime: str | None = None, cache: str | None = None,
        limit: int | None = 100,
    ) -> list[TrialRecord]:  # fmt: skip
        """Finished trials, the newest study first, each study's in the order they were tried.

        ``gpu`` is a short or full name or a device key, ``shape`` is like "4096x4096x4096", ``kind`` the device kind.

        Raises:
            UnknownNameError: a GPU or dtype that neither the history nor gemmtune knows.
            ProblemError: a malformed shape.
        """
        with self.reading() as session:
            return queries.trials(session, Filter(gpu, shape, dtype, family, kind, regime, cache), outcome, limit)

    def failures(
        self, *, gpu: str | None = None, shape: str | None = None, dtype: str | None = None, family: str | None = None,
        outcome: str | None = None, kind: str | None = None, regime: str | None = None, cache: str | None = None,
        limit: int | None = 20,
    ) -> list[FailureGroup]:  # fmt: skip
        """Failed trials by outcome and kind of detail, the most frequent kind first, each with its latest example."""
        with self.reading() as session:
            return queries.failures(session, Filter(gpu, shape, dtype, family, kind, regime, cache), outcome, limit)

    def trial(self, trial_id: int) -> TrialRecord | None:
        """One trial by its id, or None."""
        with self.reading() as session:
            return queries.by_id(session, [trial_id]).get(trial_id)
