"""Merging an exported history into this one: a union of sets by natural keys, in one transaction."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert, select, update

from gemmtune.db import models as m
from gemmtune.db.engine import file_error
from gemmtune.db.queries import DONE
from gemmtune.db.records import MergeReport
from gemmtune.db.store import digest, gpu_from_json, refresh_scores
from gemmtune.db.transfer import FORMAT, PARTS, SCHEMA, Part, decode
from gemmtune.space.errors import DatabaseError

_CHUNK = 500
_LONGEST = 1 << 28
"""Bytes of the longest line read: a cubin in base64 with room to spare."""


def merge(connection: Connection, path: Path) -> MergeReport:
    """Add the rows of ``path`` that the database lacks.

    Raises:
        DatabaseError: the file is missing, truncated, altered, of a newer schema or no export. The caller's
            transaction must then be rolled back.
    """
    merger = _Merger(connection, path)
    with _told(path):
        for number, name, row in _read(path):
            merger.take(number, name, row)
        merger.finish()
    return merger.report()


def check_export(path: str | Path) -> None:
    """Read an exported history to its end, so that a new history is begun for a whole one alone.

    Raises:
        DatabaseError: the file is missing, truncated, altered, of a newer schema or no export.
    """
    with _told(Path(path)):
        for _ in _read(Path(path)):
            pass


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What a file's own failures mean, in a sentence."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DatabaseError(
            f"The file {path} is no exported history or was cut off ({error}): "
            f"write it with gemmtune db export and copy it whole."
        ) from None
    except OSError as error:
        raise file_error(error, path) from None


def _read(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Line number, table and row of every line, after which the trailer has been checked."""
    check, count, ended = hashlib.sha256(), 0, False
    with gzip.open(path, "rb") as lines:
        try:
            header = _line(path, 1, lines.readline(_LONGEST), check)
        except DatabaseError:
            header = None
        if not isinstance(header, dict) or header.get("format") != FORMAT or not isinstance(header.get("schema"), int):
            raise DatabaseError(f"The file {path} is no exported history: write one with gemmtune db export.")
        if header["schema"] > SCHEMA:
            raise DatabaseError(
                f"The file {path} has schema {header['schema']}, newer than the {SCHEMA} of this gemmtune: "
                f"upgrade gemmtune with pip install -U gemmtune."
            )
        for number in range(2, 1 << 62):
            expected = check.hexdigest()
            text = lines.readline(_LONGEST)
            if not text:
                break
            data = _line(path, number, text, check)
            if isinstance(data, dict) and not ended:
                if data != {"rows": count, "sha256": expected}:
                    raise DatabaseError(
                        f"The file {path} was altered or damaged (its checksum differs): export it again."
                    )
                ended = True
            elif not ended and isinstance(data, list) and len(data) == 2 and isinstance(data[1], dict):
                count += 1
                yield number, str(data[0]), data[1]
            else:
                raise _malformed(path, number, "no row is expected here" if ended else "not a row")
    if not ended:
        raise DatabaseError(f"The file {path} was cut off after {count} rows: copy or export it again.")


def _line(path: Path, number: int, text: bytes, check: Any) -> Any:
    check.update(text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(path, number, str(error)) from None


def _malformed(path: Path, number: int, reason: str) -> DatabaseError:
    return DatabaseError(f"Line {number} of {path} is malformed ({reason}): export the history again.")


class _Merger:
    """Takes rows, table after table, and adds in chunks those that the database lacks."""

    def __init__(self, connection: Connection, path: Path) -> None:
        self.connection = connection
        self.path = path
        self.part = next(iter(PARTS.values()))
        self.order = list(PARTS)
        self.waiting: list[dict[str, Any]] = []
        self.ids: dict[str, dict[str, int]] = defaultdict(dict)
        self.added: dict[str, set[int]] = defaultdict(set)
        self.rescored: set[int] = set()

    def take(self, number: int, name: str, row: dict[str, Any]) -> None:
        """Check one row and keep it until its chunk is full."""
        if name != self.part.name or len(self.waiting) >= _CHUNK:
            self._flush()
        if name not in PARTS or self.order.index(name) < self.order.index(self.part.name):
            raise _malformed(self.path, number, f"table {name!r} is not expected here")
        self.part = PARTS[name]
        try:
            self.waiting.append(self._checked(row))
        except (KeyError, TypeError, ValueError) as error:
            raise _malformed(self.path, number, f"{name}: {error}") from None

    def finish(self) -> None:
        """Add the last chunk and bring scores up to date."""
        self._flush()
        refresh_scores(self.connection, sorted(self.rescored))

    def report(self) -> MergeReport:
        """What was added."""
        n = {name: len(ids) for name, ids in self.added.items()}
        return MergeReport(
            studies=n.get("study", 0),
            trials=n.get("trial", 0),
            measurements=n.get("measurement", 0),
            exports=n.get("export", 0),
            cubins=n.get("cubin", 0),
        )

    def _checked(self, row: dict[str, Any]) -> dict[str, Any]:
        part = self.part
        names = {column.key for column in part.columns} | set(part.references)
        if set(row) != names:
            raise ValueError(f"fields {sorted(set(row) ^ names)} are missing or unknown")
        if part.natural == "digest" and digest({k: v for k, v in row.items() if k != "digest"}) != row["digest"]:
            raise ValueError("its digest differs")
        out = {column.key: decode(column, row[column.key]) for column in part.columns}
        for name, key in part.references.items():
            if row[name] is None and part.table.c[key].nullable:
                out[key] = None
            else:
                out[key] = self.ids[part.parents[key]][row[name]]
        if part.table is m.trial:
            if out["outcome"] is None or out["finished"] is None:
                raise ValueError("it is not finished")
            out |= {"state": DONE, "final": False}
        elif part.table is m.gpu:
            gpu_from_json(out["data"])
        elif part.table is m.cubin and hashlib.sha256(out["data"]).hexdigest() != out["sha256"]:
            raise ValueError("its hash differs")
        return out

    def _flush(self) -> None:
        rows, self.waiting, part = self.waiting, [], self.part
        if not rows:
            return
        if part.natural is None:  # belongs to its first parent
            key, parent = next(iter(part.parents.items()))
            fresh = [row for row in rows if row[key] in self.added[parent]]
        else:
            by_key = {row[part.natural]: row for row in rows}
            known = self._find(part, list(by_key))
            if part.table is m.template:
                self._complete_texts(by_key, known)
            fresh = [row for natural, row in by_key.items() if natural not in known]
        if fresh:
            self.connection.execute(insert(part.table), fresh)
        if part.natural is not None:
            added = self._find(part, [row[part.natural] for row in fresh])
            self.ids[part.name] |= known | added
            self.added[part.name] |= set(added.values())
        if part.table is m.trial:
            self.rescored |= set(added.values())
        elif part.table is m.measurement:
            self.rescored |= {row["trial_id"] for row in fresh}

    def _find(self, part: Part, naturals: list[str]) -> dict[str, int]:
        if not naturals:
            return {}
        natural = part.table.c[part.natural or ""]
        found = self.connection.execute(select(natural, part.table.c.id).where(natural.in_(naturals)))
        return {key: id_ for key, id_ in found}  # noqa: C416 - a Row is no tuple to dict's type

    def _complete_texts(self, rows: dict[str, dict[str, Any]], known: dict[str, int]) -> None:
        """A template stored without its text gets it from a history that has it."""
        for natural, id_ in known.items():
            missing = (m.template.c.id == id_, m.template.c.text == "")
            self.connection.execute(update(m.template).where(*missing).values(text=rows[natural]["text"]))
