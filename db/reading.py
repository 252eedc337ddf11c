"""Reading trials: one statement gives all that their records tell."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import LABEL_STYLE_TABLENAME_PLUS_COL, ColumnElement, Connection, FromClause, Select, bindparam, select

from gemmtune.db import models as m
from gemmtune.db.records import Timing, TrialRecord
from gemmtune.db.store import gpu_from_json
from gemmtune.space.gpu import Gpu


def records(
    connection: Connection, *conditions: ColumnElement[bool], order: Sequence[Any] = (), limit: int | None = None
) -> list[TrialRecord]:
    """The trials that meet ``conditions``, as records."""
    query = _records().where(*conditions).order_by(*order)
    return _read(connection, query.limit(limit) if limit is not None else query)


def by_id(connection: Connection, ids: Sequence[int]) -> dict[int, TrialRecord]:
    """Records of these trials."""
    out: dict[int, TrialRecord] = {}
    for start in range(0, len(ids), 500):
        out |= {r.id: r for r in _read(connection, _records_by_id(), {"ids": ids[start : start + 500]})}
    return out


@functools.cache
def _records() -> Select[Any]:
    """Every trial with all that its record tells; making this statement costs more than running it.

    ``own`` is the trial's own (latest) measurement, ``final`` its latest among the finalists. A column is named after
    its table or alias: ``trial_uuid``, ``own_us``, ``final_base_name``.
    """
    own, final = m.measurement.alias("own"), m.measurement.alias("final")
    own_base, final_base = m.baseline.alias("own_base"), m.baseline.alias("final_base")
    timing = ("id", "us", "us_low", "us_high", "ratio", "ratio_low", "ratio_high", "estimated")
    return (
        select(
            m.trial,
            *_some(m.study, "kind", "regime", "cache"),
            *_some(m.problem, "id", "key", "data"),
            *_some(m.gpu, "id", "data"),
            *_some(m.environment, "id", "data"),
            *_some(m.kernel, "cubin_sha256", "arch", "nvrtc", "source", "recipe"),
            *_some(m.kernel, "registers", "spill_bytes", "stack_bytes", "shared_bytes"),
            m.template.c.hash,
            *_some(m.verification, "rel_error", "error_bound", "excess", "coverage"),
            *_some(own, *timing),
            *_some(own_base, "name", "us"),
            *_some(final, *timing),
            *_some(final_base, "name", "us"),
        )
        .select_from(m.trial)
        .join(m.study, m.study.c.id == m.trial.c.study_id)
        .join(m.problem, m.problem.c.id == m.study.c.problem_id)
        .join(m.gpu, m.gpu.c.id == m.study.c.gpu_id)
        .join(m.environment, m.environment.c.id == m.study.c.environment_id)
        .outerjoin(m.kernel, m.kernel.c.id == m.trial.c.kernel_id)
        .outerjoin(m.template, m.template.c.id == m.kernel.c.template_id)
        .outerjoin(m.verification, m.verification.c.trial_id == m.trial.c.id)
        .outerjoin(own, own.c.id == _latest(final=False))
        .outerjoin(own_base, own_base.c.measurement_id == own.c.id)
        .outerjoin(final, final.c.id == _latest(final=True))
        .outerjoin(final_base, final_base.c.measurement_id == final.c.id)
        .set_label_style(LABEL_STYLE_TABLENAME_PLUS_COL)
    )


def _some(table: FromClause, *names: str) -> list[ColumnElement[Any]]:
    return [table.c[name] for name in names]


@functools.cache
def _records_by_id() -> Select[Any]:
    return _records().where(m.trial.c.id.in_(bindparam("ids", expanding=True)))


def _read(connection: Connection, query: Select[Any], values: Mapping[str, Any] | None = None) -> list[TrialRecord]:
    shared = _Shared()
    return [_record(row, shared) for row in connection.execute(query, values)]


def _latest(*, final: bool) -> Any:
    return (
        select(m.measurement.c.id)
        .where(m.measurement.c.trial_id == m.trial.c.id, m.measurement.c.final.is_(final))
        .order_by(m.measurement.c.measured.desc(), m.measurement.c.uuid.desc())
        .limit(1)
        .correlate(m.trial)
        .scalar_subquery()
    )


@dataclass(frozen=True)
class _Shared:
    """What many records have in common, held once for all of them; by id."""

    gpus: dict[int, Gpu] = field(default_factory=dict)
    environments: dict[int, dict[str, Any]] = field(default_factory=dict)
    problems: dict[int, dict[str, Any]] = field(default_factory=dict)


def _record(row: Any, shared: _Shared) -> TrialRecord:
    if row.gpu_id not in shared.gpus:
        shared.gpus[row.gpu_id] = gpu_from_json(row.gpu_data)
    is_final = row.final_id is not None
    return TrialRecord(
        id=row.trial_id,
        uuid=row.trial_uuid,
        number=row.trial_number,
        study_id=row.trial_study_id,
        state=row.trial_state,
        configuration=row.trial_configuration,
        configuration_key=row.trial_configuration_key,
        family=row.trial_family,
        outcome=row.trial_outcome or "",
        detail=row.trial_detail,
        kind=row.study_kind,
        gpu=shared.gpus[row.gpu_id],
        environment=shared.environments.setdefault(row.environment_id, row.environment_data),
        regime=row.study_regime,
        cache=row.study_cache,
        problem_key=row.problem_key,
        problem_json=shared.problems.setdefault(row.problem_id, row.problem_data),
        us=row.own_us,
        us_low=row.own_us_low,
        us_high=row.own_us_high,
        baseline_us=row.own_base_us,
        ratio=row.own_ratio,
        ratio_low=row.own_ratio_low,
        ratio_high=row.own_ratio_high,
        estimated=bool(row.final_estimated if is_final else row.own_estimated),
        baseline=(row.final_base_name if is_final else row.own_base_name) or "",
        final=_timing(row) if is_final else None,
        rel_error=row.verification_rel_error,
        error_bound=row.verification_error_bound,
        excess=row.verification_excess,
        coverage=row.verification_coverage,
        registers=row.kernel_registers,
        spill_bytes=row.kernel_spill_bytes,
        stack_bytes=row.kernel_stack_bytes,
        shared_bytes=row.kernel_shared_bytes,
        template_hash=row.template_hash or "",
        cubin_sha256=row.kernel_cubin_sha256 or "",
        arch=row.kernel_arch or "",
        nvrtc=row.kernel_nvrtc or "",
        source=row.kernel_source or "",
        recipe=row.kernel_recipe,
        seconds=row.trial_seconds,
        started=row.trial_started,
        finished=row.trial_finished,
    )


def _timing(row: Any) -> Timing:
    return Timing(
        us=row.final_us,
        us_low=row.final_us_low,
        us_high=row.final_us_high,
        baseline_us=row.final_base_us,
        ratio=row.final_ratio,
        ratio_low=row.final_ratio_low,
        ratio_high=row.final_ratio_high,
        estimated=row.final_estimated,
        final=True,
    )
