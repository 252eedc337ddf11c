"""Reaching a database: which one, how SQLite is opened, and what its failures mean in a sentence.

SQLite runs in WAL mode, so that readers never wait for the writer. Writing transactions begin with BEGIN IMMEDIATE:
they wait for each other at the start (:mod:`gemmtune.db.patience`), and can then no longer fail half-way for a lock.
On PostgreSQL an advisory lock gives writers the same order.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, StaticPool, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from gemmtune.db.patience import Patience, is_busy, primary_code
from gemmtune.space.errors import DatabaseError, SettingError, disk_is_full

WRITE = "gemmtune_write"
"""Execution option of connections that will write."""
POSTGRES_LOCK = 0x67656D6D
"""Key of the advisory lock that all writers of a PostgreSQL history take."""
CHECKPOINT = 4096
"""Pages of SQLite's log, 16 MB in all, after which it is moved into the file; so are shorter ones at the end."""
LARGEST = 2**63 - 1
"""The largest number that a database holds."""
_CURE = "give another with --db or GEMMTUNE_DB"


def resolve(url: str | Path | None, *, create: bool = True) -> URL:
    """The database that ``url`` names: a SQLAlchemy URL, the path of a SQLite file, or None for the user's own.

    None means ``$GEMMTUNE_DB``, else ``history.db`` in the user's data directory. Missing directories are created,
    unless ``create`` is false: then there must be a file.

    Raises:
        DatabaseError: a URL that does not parse, a directory that cannot be created, or no file where there must be
            one.
    """
    parsed = locate(url)
    path = file_of(parsed)
    if path is None:
        return parsed
    if not create and not path.exists():
        raise DatabaseError(f"There is no history at {path}: 'gemmtune tune' starts one, or {_CURE}.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseError(
            f"The directory of the history {path} cannot be created ({error.strerror}): create it, or {_CURE}."
        ) from None
    if path.is_dir():
        raise DatabaseError(f"The history {path} is a directory: {_CURE}.")
    return parsed


def locate(url: str | Path | None) -> URL:
    """The same as a URL alone: nothing is created, and nothing looked at.

    Raises:
        DatabaseError: a URL that does not parse.
    """
    if url is None:
        url = os.environ.get("GEMMTUNE_DB") or _default_path()
    if not isinstance(url, str) or "://" not in url:
        return URL.create("sqlite", database=str(Path(url).expanduser()))
    try:
        return make_url(url)
    except (ArgumentError, ValueError) as error:
        raise DatabaseError(
            f"The database URL {url!r} is malformed ({error}): write it like sqlite:///path/history.db, or give a path."
        ) from None


def file_of(url: URL) -> Path | None:
    """The file of a SQLite database; None of one in memory, on a server, or behind a SQLite URI."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:") or "uri" in url.query:
        return None
    return Path(str(url.database))


def _default_path() -> Path:
    from platformdirs import user_data_path

    return user_data_path("gemmtune") / "history.db"


def where(url: URL) -> str:
    """The database in words: the file's path, else the URL without its password."""
    if url.get_backend_name() == "sqlite" and url.database:
        return url.database
    return url.render_as_string(hide_password=True)


def open_engine(url: URL, timeout: float) -> Engine:
    """An engine for ``url``; ``timeout`` in seconds is how long a transaction waits for a lock.

    Raises:
        DatabaseError: the URL's dialect or driver is not installed.
    """
    options: dict[str, Any] = {}
    sqlite = url.get_backend_name() == "sqlite"
    if sqlite:
        options["connect_args"] = {"timeout": timeout}
        if url.database in (None, "", ":memory:"):
            options["poolclass"] = StaticPool
            options["connect_args"]["check_same_thread"] = False
    try:
        engine = create_engine(url, **options)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise DatabaseError(
            f"The database {where(url)} needs a driver that is not installed ({error}): "
            f"install it with pip, or {_CURE}."
        ) from None
    except (ArgumentError, TypeError, ValueError) as error:
        raise DatabaseError(f"The database URL {where(url)} cannot be used ({error}): {_CURE}.") from None
    if sqlite:
        event.listen(engine, "connect", _connect_sqlite)
        waiting = _Transactions(Patience(where(url), timeout))
        event.listen(engine, "begin", waiting.begin)
        event.listen(engine, "commit", waiting.commit)
    elif url.get_backend_name() == "postgresql":
        event.listen(engine, "begin", _begin_postgres)
    return engine


def _connect_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions are begun below, not by the driver's guesses
    connection.execute("PRAGMA foreign_keys = ON")
    # In WAL mode this survives the death of the process at any moment; only a power cut can lose the last trials.
    connection.execute("PRAGMA synchronous = NORMAL")
    # What moves the log into the file waits for the disk, and holds up the trial that it comes upon: seldom, then.
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT}")


class _Transactions:
    """Begins and commits SQLite's transactions, with patience where they write; where they read, SQLite waits."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    def begin(self, connection: Connection) -> None:
        raw, writes = driver_connection(connection), bool(connection.get_execution_options().get(WRITE))
        if connection.info.get(WRITE) is not writes:  # asked once for each change: it costs as much as a statement
            raw.execute(f"PRAGMA busy_timeout = {0 if writes else round(self._patience.timeout * 1000)}")
            connection.info[WRITE] = writes
        if writes:
            self._patience.run(raw, "BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql("BEGIN")

    def commit(self, connection: Connection) -> None:
        """Commit ahead of the driver, which then finds nothing left to do.

        Without WAL, a commit waits for readers; one that gave up may be tried again.
        """
        raw = driver_connection(connection)
        if connection.get_execution_options().get(WRITE) and raw.in_transaction:
            self._patience.run(raw, "COMMIT")


def driver_connection(connection: Connection) -> sqlite3.Connection:
    """The driver's own connection of a SQLite database."""
    raw: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[assignment]
    return raw


def _begin_postgres(connection: Connection) -> None:
    if connection.get_execution_options().get(WRITE):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({POSTGRES_LOCK})")
    else:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


@contextmanager
def translated(url: URL, timeout: float) -> Iterator[None]:
    """Turn the database's failures inside the block into one-sentence :class:`DatabaseError`, and a number that it
    cannot hold into :class:`SettingError`.
    """
    try:
        yield
    except PoolTimeoutError as error:
        raise DatabaseError(
            f"The history {where(url)} has too many connections open in this process: {error}."
        ) from None
    except DBAPIError as error:
        raise DatabaseError(_sentence(error, where(url), timeout)) from error
    except OverflowError:
        raise SettingError(f"A number is larger than a database holds: give one of at most {LARGEST}.") from None
    except OSError as error:
        raise file_error(error, where(url)) from error


def _sentence(error: DBAPIError, place: str, timeout: float) -> str:
    code = primary_code(error)
    if getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHMSIZE:
        code = sqlite3.SQLITE_FULL  # the index of the log could not be made larger
    if is_busy(error):
        return (
            f"The history {place} has been locked by another process for {timeout:g} s: "
            f"wait until that one is done or stop it, then run the same command again."
        )
    sentences = {
        sqlite3.SQLITE_READONLY: f"The history {place} is read-only: "
        f"make the file and its directory writable, or {_CURE}.",
        sqlite3.SQLITE_CANTOPEN: f"The history {place} cannot be opened: check that the file and its directory may be "
        f"read and written, or {_CURE}.",
        sqlite3.SQLITE_FULL: f"The disk of the history {place} is full: "
        f"free some space and run the same command again; what was recorded before is kept.",
        sqlite3.SQLITE_NOTADB: f"The file {place} is not a database: {_CURE}.",
        sqlite3.SQLITE_CORRUPT: f"The history {place} is damaged: restore a copy, or move it away and merge exported "
        f"histories into a new one.",
        sqlite3.SQLITE_IOERR: f"The disk of the history {place} failed while reading or writing ({error.orig}): "
        f"check the disk and its free space.",
    }
    if code in sentences:
        return sentences[code]
    reason = " ".join(str(error.orig).split())
    return f"The database {place} refused ({reason}): check that it is reachable and that you may use it, or {_CURE}."


def file_error(error: OSError, path: str | Path) -> DatabaseError:
    """The sentence for a file that cannot be read or written."""
    if disk_is_full(error):
        return DatabaseError(f"The disk of {path} is full: free some space and run the same command again.")
    return DatabaseError(
        f"The file {path} cannot be used ({error.strerror or error}): check its path and its permissions."
    )
