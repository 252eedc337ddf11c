"""Writing rows: describing rows are found by the digest of their content or added; scores follow from measurements."""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import (
    Connection,
    CursorResult,
    Table,
    Update,
    bindparam,
    case,
    false,
    func,
    insert,
    null,
    select,
    update,
)
from sqlalchemy.dialects import sqlite

from gemmtune.db import models as m
from gemmtune.db.records import CORRECT, Described, KernelData, MeasurementData, StudySpec, VerificationData
from gemmtune.space.errors import DatabaseError
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import problem_from_json, shape_of

TICK = 1e-6
"""Seconds between moments that must not be equal; a float of seconds since the epoch resolves a quarter of it."""

# What every trial writes is built once: making a statement costs more than running it.
_FIND_TEMPLATE = select(m.template.c.id, m.template.c.text == "").where(m.template.c.hash == bindparam("hash"))
_FIND_DESCRIBED = {
    table: select(table.c.id).where(table.c.digest == bindparam("digest"))
    for table in (m.gpu, m.environment, m.problem, m.kernel)
}
_INSERT = {table: insert(table) for table in m.metadata.tables.values()}
_ADD_KERNEL = sqlite.insert(m.kernel).on_conflict_do_nothing(index_elements=["digest"])


def new_uuid() -> str:
    """A fresh natural key."""
    return uuid.uuid4().hex


def plain(value: Any) -> Any:
    """JSON data with lists for tuples, dicts for mappings, and null for numbers that JSON lacks (NaN, infinity)."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    return plain(value.item()) if hasattr(value, "item") else str(value)  # NumPy scalars; else its text


def digest(value: Any) -> str:
    """sha256 of the canonical JSON text of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def pack_samples(samples: Sequence[float]) -> bytes:
    """Samples as little-endian float32."""
    return struct.pack(f"<{len(samples)}f", *samples)


def unpack_samples(blob: bytes) -> tuple[float, ...]:
    """What :func:`pack_samples` wrote."""
    return struct.unpack(f"<{len(blob) // 4}f", blob)


def gpu_to_json(gpu: Gpu) -> dict[str, Any]:
    """Every field of a GPU."""
    return {f.name: plain(getattr(gpu, f.name)) for f in fields(Gpu)}


def gpu_from_json(data: Mapping[str, Any]) -> Gpu:
    """What :func:`gpu_to_json` wrote; fields that this version does not know are left out."""
    known = {f.name: data[f.name] for f in fields(Gpu) if f.name in data}
    major, minor = known["capability"]
    return Gpu(**{**known, "capability": (major, minor)})


def spec_digest(spec: StudySpec) -> str:
    """What two studies must agree in, the environment aside."""
    return digest(
        [
            spec.problem_key,
            spec.kind,
            spec.gpu.key,
            spec.regime,
            spec.cache,
            list(spec.families),
            spec.strategy,
            spec.seed,
        ]
    )


def add_gpu(connection: Connection, gpu: Gpu) -> int:
    """The id of this GPU's row."""
    return _intern(connection, m.gpu, {"key": gpu.key, "name": gpu.name, "short": gpu.short, "data": gpu_to_json(gpu)})


def add_environment(connection: Connection, environment: Mapping[str, str]) -> int:
    """The id of this environment's row."""
    return _intern(connection, m.environment, {"data": plain(environment)})


def add_problem(connection: Connection, key: str, problem: Mapping[str, Any]) -> int:
    """The id of this problem's row.

    Raises:
        UnknownNameError: its kind is not registered.
        ProblemError: its fields are missing or out of range.
    """
    import gemmtune.space.gemm  # noqa: F401 - registers the first kind

    axes = {name: int(size) for name, size in problem_from_json(problem).axes.items()}
    data = plain(problem)
    content = {
        "kind": str(data["kind"]),
        "key": key,
        "shape": shape_of(axes),
        "dtype": str(data.get("dtype", "")),
        "axes": axes,
        "data": data,
    }
    return _intern(connection, m.problem, content)


def add_kernel(connection: Connection, kernel: KernelData, configuration: str, known: dict[str, int]) -> int:
    """The id of this kernel's row; its template's text is stored with the first kernel that brings it.

    ``known``: ids of templates that need not be looked up again, by hash; what is found whole goes there.
    """
    template_id = known.get(kernel.template_hash)
    if template_id is None:
        template_id = _template(connection, kernel, known)
    key, content = describe(kernel, configuration)
    columns = {**content, "template_id": template_id}
    if connection.dialect.name == "sqlite":  # in a new study most are new
        result = connection.execute(_ADD_KERNEL, {"digest": key, **columns})
        if result.rowcount:
            return _new_id(result)
    return _interned(connection, m.kernel, key, columns)


def describe(kernel: KernelData, configuration: str) -> Described:
    """What identifies a kernel's row, and what it holds; worked out once for each.

    Who knows ahead what will be recorded, and has a thread to spare, may call it then.
    """
    if configuration in kernel.described:
        return kernel.described[configuration]
    m.deflated(kernel.source)
    content = {
        "configuration": configuration,
        "cubin_sha256": kernel.cubin_sha256,
        "arch": kernel.arch,
        "nvrtc": kernel.nvrtc,
        "source": kernel.source,
        "recipe": plain(kernel.recipe),
        "registers": kernel.registers,
        "spill_bytes": kernel.spill_bytes,
        "stack_bytes": kernel.stack_bytes,
        "shared_bytes": kernel.shared_bytes,
    }
    # The digest names the template by its natural key, as a row that travels does.
    kernel.described[configuration] = digest({**content, "template": kernel.template_hash}), content
    return kernel.described[configuration]


def _template(connection: Connection, kernel: KernelData, known: dict[str, int]) -> int:
    found = connection.execute(_FIND_TEMPLATE, {"hash": kernel.template_hash}).first()
    if found is None:
        return add(connection, m.template, {"hash": kernel.template_hash, "text": kernel.template_text})
    template_id, lacks_text = int(found[0]), found[1]
    if not lacks_text:
        known[kernel.template_hash] = template_id
    elif kernel.template_text:
        complete = update(m.template).where(m.template.c.id == template_id).values(text=kernel.template_text)
        connection.execute(complete)
    return template_id


def add_verification(connection: Connection, trial_id: int, data: VerificationData) -> None:
    """Store the proof of a trial."""
    row = {
        "trial_id": trial_id,
        "passed": bool(data.passed),
        "rel_error": _worst(data.rel_error),
        "error_bound": _worst(data.error_bound),
        "excess": _worst(data.excess),
        "coverage": float(data.coverage),
        "checks": list(data.checks),
        "detail": data.detail,
    }
    connection.execute(_INSERT[m.verification], row)


def add_measurement(
    connection: Connection, trial_id: int, data: MeasurementData, *, final: bool, measured: float
) -> None:
    """Append a measurement, made at ``measured``, to a trial; :func:`refresh_scores` afterwards."""
    row = {
        "uuid": new_uuid(),
        "trial_id": trial_id,
        "final": final,
        "estimated": bool(data.estimated),
        "us": float(data.us),
        "us_low": float(data.us_low),
        "us_high": float(data.us_high),
        "ratio": _optional(data.ratio),
        "ratio_low": _optional(data.ratio_low),
        "ratio_high": _optional(data.ratio_high),
        "clock_mhz": _optional(data.clock_mhz),
        "throttle": data.throttle,
        "counters": plain(data.counters),
        "samples": pack_samples(data.samples),
        "measured": measured,
    }
    measurement_id = add(connection, m.measurement, row)
    if data.baseline_us is not None:
        samples = pack_samples(data.baseline_samples)
        baseline = {"name": data.baseline_name, "us": float(data.baseline_us), "samples": samples}
        connection.execute(_INSERT[m.baseline], {"measurement_id": measurement_id, **baseline})


def add_export(connection: Connection, name: str, manifest: str, cubins: Mapping[str, bytes], now: float) -> str:
    """Store an exported pack; its uuid.

    Raises:
        DatabaseError: a cubin does not have the hash it is given under.
    """
    uuid = new_uuid()
    row = {"uuid": uuid, "name": name, "manifest_sha256": manifest, "created": now}
    export_id = add(connection, m.export, row)
    for sha256, data in cubins.items():
        if hashlib.sha256(data).hexdigest() != sha256:
            raise DatabaseError(f"The cubin {sha256} of pack {name} has another hash: compile it again.")
        cubin_id = connection.scalar(select(m.cubin.c.id).where(m.cubin.c.sha256 == sha256))
        if cubin_id is None:
            cubin_id = add(connection, m.cubin, {"sha256": sha256, "data": data})
        connection.execute(_INSERT[m.export_cubin], {"export_id": export_id, "cubin_id": cubin_id})
    return uuid


def refresh_scores(connection: Connection, trial_ids: Iterable[int]) -> None:
    """Bring ``score`` and ``final`` of these trials up to date with their measurements.

    The latest final measurement counts, else the latest of all. The score is that of
    :attr:`gemmtune.db.records.Timing.score`. Only correct trials have one.
    """
    wanted = list(trial_ids)
    for start in range(0, len(wanted), 500):
        connection.execute(_REFRESH, {"trials": wanted[start : start + 500]})


def _refreshing() -> Update:
    trial, measurement = m.trial.c, m.measurement.c
    counts = (
        select()
        .where(measurement.trial_id == trial.id)
        .order_by(measurement.final.desc(), measurement.measured.desc(), measurement.uuid.desc())
        .limit(1)
        .correlate(m.trial)
    )
    score = case((measurement.ratio.is_not(None), -measurement.ratio), else_=measurement.us)
    values = {
        "score": case((trial.outcome == CORRECT, counts.add_columns(score).scalar_subquery()), else_=null()),
        "final": func.coalesce(counts.add_columns(measurement.final).scalar_subquery(), false()),
    }
    return update(m.trial).where(trial.id.in_(bindparam("trials", expanding=True))).values(values)


_REFRESH = _refreshing()


def failure_pattern(detail: str) -> str:
    """The first line of a detail with every word that holds a digit blanked: equal for failures of one kind."""
    line = detail.strip().partition("\n")[0]
    return re.sub(r"[\w.+-]*\d[\w.+-]*", "#", line)[:200]


def add(connection: Connection, table: Table, row: Mapping[str, Any]) -> int:
    """Insert a row; its id."""
    return _new_id(connection.execute(_INSERT[table], row))


def _intern(connection: Connection, table: Table, content: Mapping[str, Any]) -> int:
    """The id of the row with this content."""
    return _interned(connection, table, digest(content), content)


def _interned(connection: Connection, table: Table, key: str, columns: Mapping[str, Any]) -> int:
    """The id of the row with this digest, which is added with these columns where it is not there."""
    found = connection.execute(_FIND_DESCRIBED[table], {"digest": key}).scalar()
    if found is not None:
        return int(found)
    return add(connection, table, {"digest": key, **columns})


def _new_id(result: CursorResult[Any]) -> int:
    (id_,) = result.inserted_primary_key or (0,)
    return int(id_)


def _worst(value: float) -> float:
    """NaN as infinity: larger than any bound, and storable everywhere."""
    return math.inf if math.isnan(value) else float(value)


def _optional(value: float | None) -> float | None:
    return None if value is None else float(value)
