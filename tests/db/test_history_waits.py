"""A history that another process has locked: the wait, what is said about it, and how it ends."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import DBAPIError

from gemmtune.db import History
from gemmtune.db import patience as waiting
from gemmtune.db.history import LOCK_TIMEOUT
from gemmtune.space.errors import DatabaseError


class Clock:
    """Time passes only where somebody sleeps, ten seconds each time; ``at`` maps a moment to what happens then."""

    def __init__(self):
        self.now = 0.0
        self.at = {}

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 0.05  # short enough for Ctrl-C
        self.now += 10.0
        for moment in [m for m in self.at if m <= self.now]:
            self.at.pop(moment)()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()

    class Fast(waiting.Patience):
        def __init__(self, place: str, timeout: float) -> None:
            super().__init__(place, timeout, made, made.sleep)

    monkeypatch.setattr("gemmtune.db.engine.Patience", Fast)
    monkeypatch.setattr("gemmtune.db.schema.Patience", Fast)
    return made


def lock(path: Path, how: str = "BEGIN IMMEDIATE") -> sqlite3.Connection:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute(how)
    return holder


def rollback_journal(path: Path) -> None:
    """As on a file system that cannot do WAL."""
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)


def test_a_lock_held_for_a_minute_is_waited_for_and_the_user_told_once(
    path: Path, make: SimpleNamespace, clock: Clock, caplog: pytest.LogCaptureFixture
):
    assert LOCK_TIMEOUT > 60
    with History(path) as history:
        study = history.open_study(make.spec())
        holder = lock(path)
        clock.at[60.0] = lambda: holder.execute("ROLLBACK")
        with caplog.at_level(logging.WARNING):
            make.run(study, 0, make.correct(0))
        assert clock.now == 60.0
        assert [t.number for t in study.trials()] == [0]
    (record,) = caplog.records
    assert record.getMessage() == f"The history {path} is locked by another process: waiting up to 120 s for it."
    holder.close()


def test_a_reader_that_holds_up_a_commit_for_a_minute_is_waited_for(path: Path, make: SimpleNamespace, clock: Clock):
    History(path).close()
    rollback_journal(path)
    with History(path) as history:
        study = history.open_study(make.spec())
        trial = study.claim(0, make.configuration(0))
        reader = lock(path, "BEGIN")
        reader.execute("SELECT * FROM trial").fetchall()
        clock.at[60.0] = lambda: reader.execute("ROLLBACK")
        study.finish(trial, make.correct(0))
        assert clock.now == 60.0
        assert [t.number for t in study.trials()] == [0]
    reader.close()


def test_a_reader_in_wal_mode_is_not_waited_for(path: Path, make: SimpleNamespace, clock: Clock):
    with History(path) as history:
        study = history.open_study(make.spec())
        reader = lock(path, "BEGIN")
        before = reader.execute("SELECT count(*) FROM trial").fetchone()
        make.run(study, 0, make.correct(0))
        assert clock.now == 0.0
        assert reader.execute("SELECT count(*) FROM trial").fetchone() == before  # its snapshot stands
    reader.close()


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_lock_that_outlasts_the_patience_costs_nothing_that_was_recorded(
    path: Path, make: SimpleNamespace, clock: Clock, journal: str
):
    with History(path) as history:
        make.run(history.open_study(make.spec()), 0, make.correct(0))
    if journal == "delete":
        rollback_journal(path)
    with History(path) as history:
        study = history.open_study(make.spec())
        trial = study.claim(1, make.configuration(1))
        holder = lock(path)
        with pytest.raises(DatabaseError, match="locked by another process for 120 s"):
            study.finish(trial, make.correct(1))
        assert 120.0 <= clock.now <= 130.0
        holder.execute("ROLLBACK")
        study.finish(trial, make.correct(1))
        assert [t.number for t in study.trials()] == [0, 1]
    holder.close()


def test_a_short_wait_is_not_worth_a_word(path: Path, caplog: pytest.LogCaptureFixture, monkeypatch, make):
    with History(path) as history:
        study = history.open_study(make.spec())
        holder = lock(path)
        patience = waiting.Patience("here", 10.0, lambda: 1.0, lambda seconds: holder.execute("ROLLBACK"))
        raw = sqlite3.connect(path, isolation_level=None)
        patience.run(raw, "BEGIN IMMEDIATE")
        assert raw.in_transaction
        raw.close()
        assert study.trials() == []
    assert caplog.records == []
    holder.close()


def test_any_other_failure_is_not_waited_for(clock: Clock):
    raw = sqlite3.connect(":memory:", isolation_level=None)
    with pytest.raises(DBAPIError, match="no such table"):
        waiting.Patience("here", 60.0, clock, clock.sleep).run(raw, "SELECT * FROM lacking")
    assert clock.now == 0.0
    raw.close()
