"""Carrying a history between machines: the file format, and writing it.

A gzip file of JSON lines. The first line is the header (format, schema, version), then one ``[table, row]`` a line,
parents before children and named by their natural keys, and last a trailer with the number of rows and the sha256 of
all lines before it, so that a cut or altered file is noticed. Only finished trials travel, and nothing that is local
(ids, claims) or follows from other rows (scores).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy import Boolean, Column, Connection, Double, Integer, LargeBinary, String, Table, select

from gemmtune import __version__
from gemmtune.db import models as m
from gemmtune.db.engine import file_error
from gemmtune.db.queries import DONE
from gemmtune.space.whole_file import whole_file

FORMAT = "gemmtune-history"
SCHEMA = 1
"""Version of the file format; a file of a newer one is refused."""


@dataclass(frozen=True)
class Part:
    """How one table travels.

    ``natural`` is the column that means the same in every database; a table without one belongs to its first parent
    and is added only along with it. ``parents`` maps foreign keys to parts, ``local`` names columns that stay at home.
    """

    name: str
    table: Table
    natural: str | None
    parents: dict[str, str] = field(default_factory=dict)
    local: frozenset[str] = frozenset()

    @property
    def columns(self) -> list[Column[Any]]:
        """The columns that travel as they are."""
        left_out = {"id", *self.parents, *self.local}
        return [column for column in self.table.columns if column.key not in left_out]

    @property
    def references(self) -> dict[str, str]:
        """Foreign key by the name it travels under: ``study`` for ``study_id``."""
        return {key.removesuffix("_id"): key for key in self.parents}


_OF_TRIAL = frozenset({"state", "score", "final", "owner_host", "owner_pid", "owner_token"})
PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        Part("gpu", m.gpu, "digest"),
        Part("environment", m.environment, "digest"),
        Part("problem", m.problem, "digest"),
        Part("template", m.template, "hash"),
        Part("kernel", m.kernel, "digest", {"template_id": "template"}),
        Part("study", m.study, "uuid", {"problem_id": "problem", "gpu_id": "gpu", "environment_id": "environment"}),
        Part("trial", m.trial, "uuid", {"study_id": "study", "kernel_id": "kernel"}, _OF_TRIAL),
        Part("verification", m.verification, None, {"trial_id": "trial"}),
        Part("measurement", m.measurement, "uuid", {"trial_id": "trial"}),
        Part("baseline", m.baseline, None, {"measurement_id": "measurement"}),
        Part("cubin", m.cubin, "sha256"),
        Part("export", m.export, "uuid"),
        Part("export_cubin", m.export_cubin, None, {"export_id": "export", "cubin_id": "cubin"}),
    )
}
"""In the order they are written and merged."""


def rows(connection: Connection) -> Iterator[tuple[str, dict[str, Any]]]:
    """Everything that travels, as (table, row of JSON data)."""
    for part in PARTS.values():
        columns = part.columns
        query = select(*columns).select_from(part.table)
        for key, parent in part.parents.items():
            above = PARTS[parent].table.alias()
            natural = above.c[PARTS[parent].natural or ""]
            query = query.add_columns(natural).outerjoin(above, above.c.id == part.table.c[key])
        query = query.order_by(*part.table.primary_key.columns)
        if part.table is m.trial:
            query = query.where(m.trial.c.state == DONE)
        names = [*(column.key for column in columns), *part.references]
        for row in connection.execute(query, execution_options={"yield_per": 1000}):
            values = [encode(column, value) for column, value in zip(columns, row, strict=False)]
            yield part.name, dict(zip(names, [*values, *row[len(columns) :]], strict=True))


def encode(column: Column[Any], value: Any) -> Any:
    """A column's value as JSON data: bytes in base64, an infinite number as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(column.type, Double) and value is not None and not math.isfinite(value):
        return str(value)
    return value


def decode(column: Column[Any], value: Any) -> Any:
    """What :func:`encode` was given.

    Raises:
        ValueError: the value is not of the column's type.
    """
    kind = column.type
    if value is None and column.nullable:
        return None
    if isinstance(kind, Boolean):
        good = isinstance(value, bool)
    elif isinstance(kind, Integer):
        good = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    elif isinstance(kind, Double):
        value = math.inf if value == "inf" else value
        good = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    elif isinstance(kind, LargeBinary):
        value = base64.b64decode(value, validate=True) if isinstance(value, str) else value
        good = isinstance(value, bytes)
    elif isinstance(kind, String | m.Deflated):
        good = isinstance(value, str) and len(value) <= (getattr(kind, "length", None) or len(value))
    else:
        good = isinstance(value, dict | list)
    if not good:
        raise ValueError(f"{column.key} is {str(value)[:40]!r}")
    return value


def write(connection: Connection, path: Path) -> int:
    """Write the history to ``path``, which appears whole or not at all; the number of rows.

    Raises:
        DatabaseError: the file cannot be written.
    """
    try:
        with whole_file(path) as file:
            return _write(connection, file)
    except OSError as error:
        raise file_error(error, path) from error


def _write(connection: Connection, file: BinaryIO) -> int:
    check, count = hashlib.sha256(), 0
    # No name and no date inside: equal histories give equal files.
    with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as out:

        def line(data: Any) -> None:
            encoded = json.dumps(data, separators=(",", ":"), allow_nan=False).encode() + b"\n"
            check.update(encoded)
            out.write(encoded)

        line({"format": FORMAT, "schema": SCHEMA, "gemmtune": __version__})
        for row in rows(connection):
            line(row)
            count += 1
        line({"rows": count, "sha256": check.hexdigest()})
    return count
