"""The tables of a history.

Rows that describe something (a GPU, an environment, a problem, a kernel) are immutable and found by the digest of
their content; what happened (a study, a trial, a measurement, an export) has a uuid. These natural keys mean the same
in every database, which is what makes merging two histories a union of sets. Integer ids are local.

Moments are seconds since the epoch (UTC), times are microseconds, sizes are bytes.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Dialect,
    Double,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


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
Word = Annotated[str, mapped_column(String(64))]
Name = Annotated[str, mapped_column(String(255))]
Key = Annotated[str, mapped_column(String(700))]
Uuid = Annotated[str, mapped_column(String(32), unique=True)]
Digest = Annotated[str, mapped_column(String(64), unique=True)]
Id = Annotated[int, mapped_column(primary_key=True)]


class Base(DeclarativeBase):
    """Constraints are named by rule, so that migrations can name them on every server."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar = {
        str: Text,
        float: Double,
        bytes: LargeBinary,
        dict[str, Any]: JSON,
        list[str]: JSON,
    }


class Gpu(Base):
    """A GPU: its device key, names, and every limit as JSON."""

    __tablename__ = "gpu"
    id: Mapped[Id]
    digest: Mapped[Digest]
    key: Mapped[Name] = mapped_column(index=True)
    name: Mapped[Name]
    short: Mapped[Word]
    data: Mapped[dict[str, Any]]


class Environment(Base):
    """The versions that make numbers comparable."""

    __tablename__ = "environment"
    id: Mapped[Id]
    digest: Mapped[Digest]
    data: Mapped[dict[str, Any]]


class Problem(Base):
    """A problem of any kind. ``shape`` is the axes' sizes in their order, joined by x."""

    __tablename__ = "problem"
    id: Mapped[Id]
    digest: Mapped[Digest]
    kind: Mapped[Word]
    key: Mapped[Name] = mapped_column(index=True)
    shape: Mapped[Name] = mapped_column(index=True)
    dtype: Mapped[Word]
    axes: Mapped[dict[str, Any]]
    data: Mapped[dict[str, Any]]


class Study(Base):
    """A search for one problem on one device in one regime.

    ``spec`` is the digest of everything in the spec but the environment. The parent is named by uuid, since a merged
    history may lack it.
    """

    __tablename__ = "study"
    __table_args__ = (Index(None, "spec", "environment_id"),)
    id: Mapped[Id]
    uuid: Mapped[Uuid]
    parent_uuid: Mapped[str | None] = mapped_column(String(32))
    spec: Mapped[Word]
    problem_id: Mapped[int] = mapped_column(ForeignKey("problem.id"), index=True)
    gpu_id: Mapped[int] = mapped_column(ForeignKey("gpu.id"), index=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"))
    kind: Mapped[Word]
    regime: Mapped[Word]
    cache: Mapped[Word]
    families: Mapped[list[str]]
    strategy: Mapped[Word]
    seed: Mapped[int] = mapped_column(BigInteger)
    created: Mapped[float]


class Template(Base):
    """The text of a kernel template with all it includes, once."""

    __tablename__ = "template"
    id: Mapped[Id]
    hash: Mapped[Digest]
    text: Mapped[str]


class Kernel(Base):
    """A compiled configuration. ``source`` is its text; the cubin lives in the cache under its hash."""

    __tablename__ = "kernel"
    id: Mapped[Id]
    digest: Mapped[Digest]
    template_id: Mapped[int] = mapped_column(ForeignKey("template.id"))
    configuration: Mapped[str]
    cubin_sha256: Mapped[Word] = mapped_column(index=True)
    arch: Mapped[Word]
    nvrtc: Mapped[Word]
    source: Mapped[str] = mapped_column(Deflated)
    recipe: Mapped[dict[str, Any]]
    registers: Mapped[int | None]
    spill_bytes: Mapped[int | None]
    stack_bytes: Mapped[int | None]
    shared_bytes: Mapped[int | None]


class Trial(Base):
    """One configuration tried. ``claimed`` by an owner while it runs, then ``done`` for ever.

    ``score`` and ``final`` follow from the measurements (:func:`gemmtune.db.store.refresh_scores`): a smaller score is
    better, null where a trial does not rank. ``pattern`` is the detail with its numbers blanked, to count failures of a
    kind.
    A study's numbers and configurations are unique among the trials of one database, which claiming sees to; copies
    of a study that went on apart may meet in a merge, and then both their trials are kept.
    """

    __tablename__ = "trial"
    __table_args__ = (
        Index(None, "study_id", "number", "state", "family"),
        Index(None, "study_id", "configuration_key"),
        Index(None, "study_id", "outcome", "number"),
        Index(None, "study_id", "final", "score", "family"),
        Index(None, "outcome", "pattern", "family", "study_id"),
    )
    id: Mapped[Id]
    uuid: Mapped[Uuid]
    study_id: Mapped[int] = mapped_column(ForeignKey("study.id"))
    kernel_id: Mapped[int | None] = mapped_column(ForeignKey("kernel.id"))
    number: Mapped[int]
    state: Mapped[Word]
    family: Mapped[Word]
    configuration: Mapped[str]
    configuration_key: Mapped[Key]
    outcome: Mapped[Word | None]
    detail: Mapped[str]
    pattern: Mapped[Name]
    seconds: Mapped[dict[str, Any]]
    started: Mapped[float]
    finished: Mapped[float | None]
    score: Mapped[float | None]
    final: Mapped[bool]
    owner_host: Mapped[Name | None]
    owner_pid: Mapped[int | None]
    owner_token: Mapped[Name | None]


class Verification(Base):
    """The proof of a trial's kernel."""

    __tablename__ = "verification"
    trial_id: Mapped[int] = mapped_column(ForeignKey("trial.id"), primary_key=True)
    passed: Mapped[bool]
    rel_error: Mapped[float]
    error_bound: Mapped[float]
    excess: Mapped[float]
    coverage: Mapped[float]
    checks: Mapped[list[str]]
    detail: Mapped[str]


class Measurement(Base):
    """A measurement of a trial's kernel; never changed, a better one is a new row. Samples: little-endian float32."""

    __tablename__ = "measurement"
    __table_args__ = (Index(None, "trial_id", "final", "measured"),)
    id: Mapped[Id]
    uuid: Mapped[Uuid]
    trial_id: Mapped[int] = mapped_column(ForeignKey("trial.id"))
    final: Mapped[bool]
    estimated: Mapped[bool]
    us: Mapped[float]
    us_low: Mapped[float]
    us_high: Mapped[float]
    ratio: Mapped[float | None]
    ratio_low: Mapped[float | None]
    ratio_high: Mapped[float | None]
    clock_mhz: Mapped[float | None]
    throttle: Mapped[str]
    counters: Mapped[dict[str, Any]]
    samples: Mapped[bytes]
    measured: Mapped[float]


class Baseline(Base):
    """What was timed interleaved with a measurement. Samples as there."""

    __tablename__ = "baseline"
    measurement_id: Mapped[int] = mapped_column(ForeignKey("measurement.id"), primary_key=True)
    name: Mapped[Word]
    us: Mapped[float]
    samples: Mapped[bytes]


class Cubin(Base):
    """A file that went into an exported pack: a cubin, or what lies beside it there."""

    __tablename__ = "cubin"
    id: Mapped[Id]
    sha256: Mapped[Digest]
    data: Mapped[bytes]


class Export(Base):
    """A pack that was exported."""

    __tablename__ = "export"
    id: Mapped[Id]
    uuid: Mapped[Uuid]
    name: Mapped[Name]
    manifest_sha256: Mapped[Word]
    created: Mapped[float]


class ExportCubin(Base):
    """Which files an exported pack holds."""

    __tablename__ = "export_cubin"
    export_id: Mapped[int] = mapped_column(ForeignKey("export.id"), primary_key=True)
    cubin_id: Mapped[int] = mapped_column(ForeignKey("cubin.id"), primary_key=True)
