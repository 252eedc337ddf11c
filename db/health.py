"""How a history is, looked at without changing it: no schema is brought up to date, and none is created."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, func, inspect, select, text
from sqlalchemy.exc import DBAPIError

from gemmtune.db import models as m
from gemmtune.db.engine import WRITE, file_of, open_engine, resolve, translated, where
from gemmtune.db.patience import is_busy
from gemmtune.db.queries import DONE
from gemmtune.db.schema import HEAD, VERSION_TABLE

INTEGRITY_BYTES = 2 * 2**30
"""A file beyond this size gets SQLite's quick check, which leaves out the comparison of indices with their tables."""


@dataclass(frozen=True)
class Health:
    """What was found.

    Args:
        location: the file's path, or the URL without its password.
        schema: its version; None where the database holds no history.
        current: the version that this gemmtune writes.
        bytes: size of the file and its write-ahead log; None where it is no file.
        studies, trials, claimed: how many there are; ``claimed`` are trials under way, or left by a process that died.
        faults: what SQLite's integrity check and the check of foreign keys said; empty where all is well.
        locked: whether another process held the lock for writing as long as the timeout.
    """

    location: str
    schema: str | None
    current: str
    bytes: int | None
    studies: int = 0
    trials: int = 0
    claimed: int = 0
    faults: tuple[str, ...] = ()
    locked: bool = False


def examine_history(url: str | Path | None = None, timeout: float = 2.0) -> Health:
    """Look at the history that ``url`` names, as for :class:`gemmtune.db.History`.

    Args:
        url: which one; by default the user's own.
        timeout: seconds to wait for another process's lock.

    Raises:
        DatabaseError: there is none, or it cannot be opened and read.
    """
    resolved = resolve(url, create=False)
    engine = open_engine(resolved, timeout)
    try:
        with translated(resolved, timeout), engine.connect() as connection:
            schema = None
            if inspect(connection).has_table(VERSION_TABLE):
                schema = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))  # noqa: S608 - a constant
            sqlite = engine.dialect.name == "sqlite"
            path = file_of(resolved)
            size = None if path is None else _size(path)
            faults = _faults(connection, size or 0) if sqlite else ()
            if schema != HEAD:
                return Health(where(resolved), schema, HEAD, size, faults=faults)
            studies, trials, claimed = (
                connection.scalar(query) or 0
                for query in (
                    select(func.count()).select_from(m.study),
                    select(func.count()).select_from(m.trial).where(m.trial.c.state == DONE),
                    select(func.count()).select_from(m.trial).where(m.trial.c.state != DONE),
                )
            )
        with translated(resolved, timeout):
            locked = False
            try:
                with engine.connect().execution_options(**{WRITE: True}) as connection, connection.begin():
                    pass
            except DBAPIError as error:
                locked = is_busy(error.orig)
                if not locked:
                    raise
        return Health(where(resolved), schema, HEAD, size, studies, trials, claimed, faults, locked)
    finally:
        engine.dispose()


def _size(path: Path) -> int:
    return sum(p.stat().st_size for p in (path, path.with_name(path.name + "-wal")) if p.exists())


def _faults(connection: Connection, size: int) -> tuple[str, ...]:
    pragma = "quick_check(5)" if size > INTEGRITY_BYTES else "integrity_check(5)"
    said = [str(row[0]) for row in connection.exec_driver_sql(f"PRAGMA {pragma}")]
    orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(5)
    return (
        *(line for line in said if line != "ok"),
        *(f"a row of {table} points to a row of {parent} that is not there" for table, _, parent, _ in orphans),
    )
