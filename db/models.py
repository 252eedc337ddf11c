"""The tables of a history.

Rows that describe something (a GPU, an environment, a problem, a kernel) are immutable and found by the digest of
their content; what happened (a study, a trial, a measurement, an export) has a uuid. These natural keys mean the same
in every database, which is what makes merging two histories a union of sets. Integer ids are local.

Moments are seconds since the epoch (UTC), times are microseconds, sizes are bytes.

These are tables of SQLAlchemy's Core, whose columns are under ``c``: ``trial.c.outcome``. Its ORM takes longer to
import than most queries to run.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)


@lru_cache(maxsize=64)
def deflated(text: str) -> bytes:
    """Text as it is stored, deflated (zlib) at the quickest level, which takes a seventh more bytes than the best.

    Remembered for a while: who knows ahead what will be recorded, and has a thread to spare, may call it then.
    """
    return zlib.compress(text.encode(), 1)


class Deflated(TypeDecorator[str]):
    """Text, stored deflated (zlib)."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        """Deflate."""
        return None if value is None else deflated(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:
        """Inflate."""
        return None if value is None else zlib.decompress(value).decode()


# Lengths serve servers that cannot index unlimited text; SQLite ignores them.
UUID, WORD, NAME, KEY = String(32), String(64), String(255), String(700)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
"""Constraints are named by rule, so that migrations can name them on every server."""


def _filled(name: str, kind: Any, **options: Any) -> Column[Any]:
    """A column that every row fills; one that a row may leave null is a plain ``Column``."""
    return Column(name, kind, nullable=False, **options)


def _id() -> Column[Any]:
    return Column("id", Integer, primary_key=True)


def _parent(table: str, **options: Any) -> Column[Any]:
    """The id of a row of ``table``; every row has one unless it is told to be ``nullable``."""
    return Column(f"{table}_id", ForeignKey(f"{table}.id"), **{"nullable": False, **options})


gpu = Table(
    "gpu",
    metadata,
    _id(),
    _filled("digest", WORD, unique=True),
    _filled("key", NAME, index=True),
    _filled("name", NAME),
    _filled("short", WORD),
    _filled("data", JSON),
)
"""A GPU: its device key, names, and every limit as JSON."""

environment = Table(
    "environment",
    metadata,
    _id(),
    _filled("digest", WORD, unique=True),
    _filled("data", JSON),
)
"""The versions that make numbers comparable."""

problem = Table(
    "problem",
    metadata,
    _id(),
    _filled("digest", WORD, unique=True),
    _filled("kind", WORD),
    _filled("key", NAME, index=True),
    _filled("shape", NAME, index=True),
    _filled("dtype", WORD),
    _filled("axes", JSON),
    _filled("data", JSON),
)
"""A problem of any kind. ``shape`` is the axes' sizes in their order, joined by x."""

study = Table(
    "study",
    metadata,
    _id(),
    _filled("uuid", UUID, unique=True),
    Column("parent_uuid", UUID),
    _filled("spec", WORD),
    _parent("problem", index=True),
    _parent("gpu", index=True),
    _parent("environment"),
    _filled("kind", WORD),
    _filled("regime", WORD),
    _filled("cache", WORD),
    _filled("families", JSON),
    _filled("strategy", WORD),
    _filled("seed", BigInteger),
    _filled("created", Double),
    Index(None, "spec", "environment_id"),
)
"""A search for one problem on one device in one regime.

``spec`` is the digest of everything in the spec but the environment. The parent is named by uuid, since a merged
history may lack it.
"""

template = Table(
    "template",
    metadata,
    _id(),
    _filled("hash", WORD, unique=True),
    _filled("text", Text),
)
"""The text of a kernel template with all it includes, once."""

kernel = Table(
    "kernel",
    metadata,
    _id(),
    _filled("digest", WORD, unique=True),
    _parent("template"),
    _filled("configuration", Text),
    _filled("cubin_sha256", WORD, index=True),
    _filled("arch", WORD),
    _filled("nvrtc", WORD),
    _filled("source", Deflated),
    _filled("recipe", JSON),
    Column("registers", Integer),
    Column("spill_bytes", Integer),
    Column("stack_bytes", Integer),
    Column("shared_bytes", Integer),
)
"""A compiled configuration. ``source`` is its text; the cubin lives in the cache under its hash."""

trial = Table(
    "trial",
    metadata,
    _id(),
    _filled("uuid", UUID, unique=True),
    _parent("study"),
    _parent("kernel", nullable=True),
    _filled("number", Integer),
    _filled("state", WORD),
    _filled("family", WORD),
    _filled("configuration", Text),
    _filled("configuration_key", KEY),
    Column("outcome", WORD),
    _filled("detail", Text),
    _filled("pattern", NAME),
    _filled("seconds", JSON),
    _filled("started", Double),
    Column("finished", Double),
    Column("score", Double),
    _filled("final", Boolean),
    Column("owner_host", NAME),
    Column("owner_pid", Integer),
    Column("owner_token", NAME),
    Index(None, "study_id", "number", "state", "family"),
    Index(None, "study_id", "configuration_key"),
    Index(None, "study_id", "outcome", "number"),
    Index(None, "study_id", "final", "score", "family"),
    Index(None, "outcome", "pattern", "family", "study_id"),
)
"""One configuration tried. ``claimed`` by an owner while it runs, then ``done`` for ever.

``score`` and ``final`` follow from the measurements (:func:`gemmtune.db.store.refresh_scores`): a smaller score is
better, null where a trial does not rank. ``pattern`` is the detail with its numbers blanked, to count failures of a
kind.
A study's numbers and configurations are unique among the trials of one database, which claiming sees to; copies
of a study that went on apart may meet in a merge, and then both their trials are kept.
"""

verification = Table(
    "verification",
    metadata,
    _parent("trial", primary_key=True),
    _filled("passed", Boolean),
    _filled("rel_error", Double),
    _filled("error_bound", Double),
    _filled("excess", Double),
    _filled("coverage", Double),
    _filled("checks", JSON),
    _filled("detail", Text),
)
"""The proof of a trial's kernel."""

measurement = Table(
    "measurement",
    metadata,
    _id(),
    _filled("uuid", UUID, unique=True),
    _parent("trial"),
    _filled("final", Boolean),
    _filled("estimated", Boolean),
    _filled("us", Double),
    _filled("us_low", Double),
    _filled("us_high", Double),
    Column("ratio", Double),
    Column("ratio_low", Double),
    Column("ratio_high", Double),
    Column("clock_mhz", Double),
    _filled("throttle", Text),
    _filled("counters", JSON),
    _filled("samples", LargeBinary),
    _filled("measured", Double),
    Index(None, "trial_id", "final", "measured"),
)
"""A measurement of a trial's kernel; never changed, a better one is a new row. Samples: little-endian float32."""

baseline = Table(
    "baseline",
    metadata,
    _parent("measurement", primary_key=True),
    _filled("name", WORD),
    _filled("us", Double),
    _filled("samples", LargeBinary),
)
"""What was timed interleaved with a measurement. Samples as there."""

cubin = Table(
    "cubin",
    metadata,
    _id(),
    _filled("sha256", WORD, unique=True),
    _filled("data", LargeBinary),
)
"""A file that went into an exported pack: a cubin, or what lies beside it there."""

export = Table(
    "export",
    metadata,
    _id(),
    _filled("uuid", UUID, unique=True),
    _filled("name", NAME),
    _filled("manifest_sha256", WORD),
    _filled("created", Double),
)
"""A pack that was exported."""

export_cubin = Table(
    "export_cubin",
    metadata,
    _parent("export", primary_key=True),
    _parent("cubin", primary_key=True),
)
"""Which files an exported pack holds."""
