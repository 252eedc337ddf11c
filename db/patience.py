"""Waiting for another process's lock on a SQLite history: patiently, not silently, and open to Ctrl-C.

SQLite's own busy timeout waits in C, where no signal is seen and nothing can be said. Readers never lock a history in
WAL mode; what does is a long write (a merge, a copy made by another tool), or a reader on a file system that cannot do
WAL, where it holds up the commit.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError

NOTICE = 3.0
"""Seconds of waiting after which the user is told."""
_FIRST, _LONGEST = 0.001, 0.05
"""Seconds between two attempts: the first pause, doubled each time, and the longest."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """How long to wait for a lock on the history at ``place``: ``timeout`` seconds."""

    place: str
    timeout: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def run(self, connection: sqlite3.Connection, statement: str) -> None:
        """Execute ``statement``, again and again while it fails for a lock and there is time.

        SQLite itself must not wait: the connection's ``busy_timeout`` is 0.

        Raises:
            sqlalchemy.exc.DBAPIError: the lock was not released in time, or the statement fails for another reason.
        """
        began, pause, told = self.clock(), _FIRST, False
        while True:
            try:
                connection.execute(statement)
            except sqlite3.Error as error:
                waited = self.clock() - began
                if not is_busy(error) or waited >= self.timeout:
                    raise DBAPIError.instance(statement, None, error, sqlite3.Error) from error
                if waited >= NOTICE and not told:
                    told = True
                    _logger.warning(
                        "The history %s is locked by another process: waiting up to %g s for it.",
                        self.place,
                        self.timeout,
                    )
            else:
                return
            self.sleep(pause)
            pause = min(2 * pause, _LONGEST)


def is_busy(error: BaseException | None) -> bool:
    """Whether SQLite failed for a lock of another connection."""
    code = primary_code(error)
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def primary_code(error: BaseException | None) -> int | None:
    """SQLite's primary result code, the low byte of the extended one; None for errors of other databases."""
    code = getattr(getattr(error, "orig", error), "sqlite_errorcode", None)
    return None if code is None else int(code) & 0xFF
