"""The schema's version: create a new history, upgrade an old one, refuse a newer one.

A current database costs one look at the version row. Alembic is imported only where there is something to migrate.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, text

from gemmtune.db.engine import WRITE, driver_connection, where
from gemmtune.db.models import metadata
from gemmtune.db.patience import Patience
from gemmtune.space.errors import DatabaseError

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE = "gemmtune_version"
"""Our own, so that other users of Alembic (Optuna) may share the database."""
HEAD = "0001"
"""The newest revision in ``migrations/versions``."""

_alembic = threading.Lock()  # Alembic keeps the migration in progress in a module-level proxy


_SHARED = "alembic_version"
"""The table by which Optuna, say, is known: a database that is shared with it is what the user meant."""


def prepare(engine: Engine, timeout: float, *, create: bool = True) -> None:
    """Bring the database to :data:`HEAD`; safe when several processes do so at once.

    Args:
        engine: of the database.
        timeout: seconds to wait for another process's lock.
        create: whether a database of another user of Alembic, or one on a server, becomes a history too; any that has
            no table at all does.

    Raises:
        DatabaseError: the schema is newer than this gemmtune, or the database holds tables that are not ours.
        sqlalchemy.exc.DBAPIError: the database fails; translate it.
    """
    with engine.connect() as connection:
        version = _version(connection)
        if version == HEAD:
            return
        if version is None:
            _check_free(connection, create)
    if engine.dialect.name == "sqlite":
        _use_wal(engine, timeout)
    with engine.connect().execution_options(**{WRITE: True}) as connection, connection.begin():
        version = _version(connection)  # again, now that nobody else can write
        if version != HEAD:
            _migrate(connection, version)


def config(connection: Connection | None = None) -> Config:
    """Alembic's configuration for our migrations, run on ``connection``."""
    from alembic.config import Config

    made = Config()
    made.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    made.attributes["connection"] = connection
    return made


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608 - a constant


def _check_free(connection: Connection, create: bool) -> None:
    """Say no to another program's database before anything in it changes, its journal included.

    Raises:
        DatabaseError: it has tables, and is not to be shared or has some of our names.
    """
    tables = sorted(inspect(connection).get_table_names())
    shared = create and (_SHARED in tables or connection.dialect.name != "sqlite")
    foreign = [name for name in tables if name in metadata.tables] if shared else tables
    if foreign:
        named = ", ".join([*foreign[:3], *(["..."] if len(foreign) > 3 else [])])
        raise DatabaseError(
            f"The database {where(connection.engine.url)} is not a gemmtune history, but has tables of another program "
            f"({named}): give another with --db or GEMMTUNE_DB."
        )


def _migrate(connection: Connection, version: str | None) -> None:
    from alembic import command
    from alembic.script import ScriptDirectory

    place = where(connection.engine.url)
    settings = config(connection)
    if version is None:
        _check_free(connection, create=True)
    elif version not in {script.revision for script in ScriptDirectory.from_config(settings).walk_revisions()}:
        raise DatabaseError(
            f"The history {place} has schema {version}, newer than the {HEAD} of this gemmtune: "
            f"upgrade gemmtune with pip install -U gemmtune, or give another with --db or GEMMTUNE_DB."
        )
    with _alembic:
        command.upgrade(settings, "head")


def _use_wal(engine: Engine, timeout: float) -> None:
    """Switch a SQLite file to WAL for good (a file system that cannot do it keeps the rollback journal)."""
    with engine.connect() as connection:
        raw = driver_connection(connection)
        raw.execute("PRAGMA busy_timeout = 0")
        connection.info[WRITE] = True
        Patience(where(engine.url), timeout).run(raw, "PRAGMA journal_mode = WAL")
