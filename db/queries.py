"""Reading a history: the records that a filter gives. Rankings are in :mod:`gemmtune.db.ranking`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from sqlalchemy import ColumnElement, Select, bindparam, func, select
from sqlalchemy.orm import Session, aliased, defer

from gemmtune.db import models as m
from gemmtune.db.filter import Filter
from gemmtune.db.records import (
    CORRECT,
    ExportRecord,
    FailureGroup,
    MeasurementData,
    MeasurementRecord,
    StudyRecord,
    Timing,
    TrialRecord,
    VerificationData,
)
from gemmtune.db.store import gpu_from_json, unpack_samples
from gemmtune.space.gpu import Gpu

DONE = "done"
CLAIMED = "claimed"
NAMED_LIMIT = 200


def records(
    session: Session, *conditions: ColumnElement[bool], order: Sequence[Any] = (), limit: int | None = None
) -> list[TrialRecord]:
    """The trials that meet ``conditions``, as records."""
    query = _records().where(*conditions).order_by(*order)
    return _read(session, query.limit(limit) if limit is not None else query)


@functools.cache
def _records() -> Select[Any]:
    """Every trial with all that its record tells. Making this statement costs more than running it."""
    own, final = aliased(m.Measurement), aliased(m.Measurement)
    own_base, final_base = aliased(m.Baseline), aliased(m.Baseline)
    query = (
        select(m.Trial, m.Study, m.Problem, m.Gpu, m.Environment, m.Kernel, m.Template.hash, m.Verification)
        .add_columns(own, own_base, final, final_base)
        .join(m.Study, m.Study.id == m.Trial.study_id)
        .join(m.Problem, m.Problem.id == m.Study.problem_id)
        .join(m.Gpu, m.Gpu.id == m.Study.gpu_id)
        .join(m.Environment, m.Environment.id == m.Study.environment_id)
        .outerjoin(m.Kernel, m.Kernel.id == m.Trial.kernel_id)
        .outerjoin(m.Template, m.Template.id == m.Kernel.template_id)
        .outerjoin(m.Verification, m.Verification.trial_id == m.Trial.id)
        .outerjoin(own, own.id == _latest(final=False))
        .outerjoin(own_base, own_base.measurement_id == own.id)
        .outerjoin(final, final.id == _latest(final=True))
        .outerjoin(final_base, final_base.measurement_id == final.id)
        .options(*(defer(x.samples) for x in (own, own_base, final, final_base)))
    )
    return cast("Select[Any]", query)


@functools.cache
def _records_by_id() -> Select[Any]:
    return _records().where(m.Trial.id.in_(bindparam("ids", expanding=True)))


def _read(session: Session, query: Select[Any], values: Mapping[str, Any] | None = None) -> list[TrialRecord]:
    gpus: dict[int, Gpu] = {}
    return [_record(row, gpus) for row in session.execute(query, values)]


def _latest(*, final: bool) -> Any:
    return (
        select(m.Measurement.id)
        .where(m.Measurement.trial_id == m.Trial.id, m.Measurement.final.is_(final))
        .order_by(m.Measurement.measured.desc(), m.Measurement.uuid.desc())
        .limit(1)
        .correlate(m.Trial)
        .scalar_subquery()
    )


def _record(row: Any, gpus: dict[int, Gpu]) -> TrialRecord:
    trial, study, problem, gpu, environment, kernel, template, proof, own, own_base, final, final_base = row
    if gpu.id not in gpus:
        gpus[gpu.id] = gpu_from_json(gpu.data)
    base = final_base if final else own_base
    return TrialRecord(
        id=trial.id,
        uuid=trial.uuid,
        number=trial.number,
        study_id=trial.study_id,
        state=trial.state,
        configuration=trial.configuration,
        configuration_key=trial.configuration_key,
        family=trial.family,
        outcome=trial.outcome or "",
        detail=trial.detail,
        kind=study.kind,
        gpu=gpus[gpu.id],
        environment=environment.data,
        regime=study.regime,
        cache=study.cache,
        problem_key=problem.key,
        problem_json=problem.data,
        us=own and own.us,
        us_low=own and own.us_low,
        us_high=own and own.us_high,
        baseline_us=own_base and own_base.us,
        ratio=own and own.ratio,
        ratio_low=own and own.ratio_low,
        ratio_high=own and own.ratio_high,
        estimated=bool((final or own) and (final or own).estimated),
        baseline=base.name if base else "",
        final=final and _timing(final, final_base),
        rel_error=proof and proof.rel_error,
        error_bound=proof and proof.error_bound,
        excess=proof and proof.excess,
        coverage=proof and proof.coverage,
        registers=kernel and kernel.registers,
        spill_bytes=kernel and kernel.spill_bytes,
        stack_bytes=kernel and kernel.stack_bytes,
        shared_bytes=kernel and kernel.shared_bytes,
        template_hash=template or "",
        cubin_sha256=kernel.cubin_sha256 if kernel else "",
        arch=kernel.arch if kernel else "",
        nvrtc=kernel.nvrtc if kernel else "",
        source=kernel.source if kernel else "",
        recipe=kernel and kernel.recipe,
        seconds=trial.seconds,
        started=trial.started,
        finished=trial.finished,
    )


def _timing(final: m.Measurement, base: m.Baseline | None) -> Timing:
    return Timing(
        us=final.us,
        us_low=final.us_low,
        us_high=final.us_high,
        baseline_us=base.us if base else None,
        ratio=final.ratio,
        ratio_low=final.ratio_low,
        ratio_high=final.ratio_high,
        estimated=final.estimated,
        final=True,
    )


# ------------------------------------------------------------------------------------------------------------ queries


def trials(session: Session, wanted: Filter, outcome: str | None, limit: int | None) -> list[TrialRecord]:
    """Finished trials, the newest study first, each study's latest trial first."""
    order = (m.Study.id.desc(), m.Trial.number.desc(), m.Trial.id.desc())
    # Studies outside, trials inside: an index gives each study's trials in this order, and the limit stops it early.
    query = select(m.Trial.id).join(m.Study, m.Study.id == m.Trial.study_id).order_by(*order).limit(limit)
    query = query.where(m.Study.id.in_(wanted.studies(session)))
    query = query.where(m.Trial.outcome == outcome if outcome else m.Trial.state == DONE)
    if wanted.family is not None:
        query = query.where(m.Trial.family == wanted.family)
    ids = session.scalars(query).all()
    found = by_id(session, ids)
    return [found[id_] for id_ in ids]


def failures(session: Session, wanted: Filter, outcome: str | None, limit: int | None) -> list[FailureGroup]:
    """Failed trials by outcome and pattern of their detail, the most frequent first."""
    failed = [outcome] if outcome else [name for name in _known_outcomes(session) if name != CORRECT]
    # All that it reads stands in one index, in the order of the groups, but for the right trials, which are the most.
    conditions = [m.Trial.outcome.in_(failed), *_of_family(wanted)]
    if replace(wanted, family=None) != Filter():
        # "+ 0" keeps the planner on that index; study by study it would have to look each trial up, and sort them all.
        conditions.append((m.Trial.study_id + 0).in_(wanted.studies(session)))
    group = (m.Trial.outcome, m.Trial.pattern, m.Trial.family)
    query = select(*group, func.count(), func.max(m.Trial.id)).where(*conditions).group_by(*group)
    counts: dict[tuple[str, str], dict[str, int]] = {}
    latest: dict[tuple[str, str], int] = {}
    for out, pattern, family, count, id_ in session.execute(query):
        key = (str(out), pattern)
        counts.setdefault(key, {})[family] = count
        latest[key] = max(id_, latest.get(key, id_))
    shown = sorted(counts, key=lambda key: (-sum(counts[key].values()), key))[:limit]
    examples = by_id(session, [latest[key] for key in shown])
    return [
        FailureGroup(
            *key,
            sum(counts[key].values()),
            examples[latest[key]],
            dict(sorted(counts[key].items(), key=lambda pair: (-pair[1], pair[0]))),
        )
        for key in shown
    ]


def outcomes(session: Session, wanted: Filter) -> dict[str, int]:
    """How many finished trials ended in each way, the most frequent first."""
    if wanted == Filter():
        return _all_outcomes(session)
    conditions = [m.Trial.outcome.is_not(None), *_of_family(wanted)]
    group: list[Any] = [m.Trial.outcome]
    if replace(wanted, family=None) != Filter():
        if wanted.family is None:  # an index has the outcomes of each study, but not their families
            group.insert(0, m.Trial.study_id)
            conditions.append(m.Trial.study_id.in_(wanted.studies(session)))
        else:
            conditions.append((m.Trial.study_id + 0).in_(wanted.studies(session)))  # see failures()
    counts = select(m.Trial.outcome, func.count().label("n")).where(*conditions).group_by(*group).subquery()
    found: dict[str, int] = {}
    for out, n in session.execute(select(counts.c.outcome, func.sum(counts.c.n)).group_by(counts.c.outcome)):
        found[str(out)] = int(n)
    return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))


def _all_outcomes(session: Session) -> dict[str, int]:
    """The same of the whole history: what is left of all its rows, which are counted fastest, are the right ones."""

    def count(*conditions: ColumnElement[bool]) -> int:
        return session.scalar(select(func.count()).select_from(m.Trial).where(*conditions)) or 0

    found = {name: count(m.Trial.outcome == name) for name in _known_outcomes(session) if name != CORRECT}
    found[CORRECT] = count() - count(m.Trial.outcome.is_(None)) - sum(found.values())
    return {name: n for name, n in sorted(found.items(), key=lambda pair: (-pair[1], pair[0])) if n}


def _of_family(wanted: Filter) -> list[ColumnElement[bool]]:
    return [] if wanted.family is None else [m.Trial.family == wanted.family]


def _known_outcomes(session: Session) -> list[str]:
    """Every outcome there is: from each to the next in an index, which is quicker than to read it."""
    out: list[str] = []
    following = select(func.min(m.Trial.outcome))
    name = session.scalar(following)
    while name is not None:
        out.append(name)
        name = session.scalar(following.where(m.Trial.outcome > name))
    return out


def verification(session: Session, trial_id: int) -> VerificationData | None:
    """The proof of a trial's kernel with every check it consists of, or None."""
    row = session.get(m.Verification, trial_id)
    if row is None:
        return None
    return VerificationData(
        row.passed, row.rel_error, row.error_bound, row.excess, tuple(row.checks), row.coverage, row.detail
    )


def find(session: Session, wanted: Filter, configuration_key: str) -> list[TrialRecord]:
    """Finished trials of one configuration, the latest first."""
    studies = m.Trial.study_id.in_(wanted.studies(session))
    conditions = (studies, m.Trial.configuration_key == configuration_key, m.Trial.state == DONE)
    return records(session, *conditions, order=(m.Trial.finished.desc(), m.Trial.id.desc()))


def named(session: Session, start: str) -> list[TrialRecord]:
    """Finished trials whose uuid, or whose kernel's cubin hash, starts with ``start`` (lower-case hex digits).

    Some hundred at most, the latest first: a start that more trials share tells nobody which one is meant.
    """
    low, high = start, start + "g"  # the digit after f: a range, so that the indices serve
    kernels = select(m.Kernel.id).where(m.Kernel.cubin_sha256 >= low, m.Kernel.cubin_sha256 < high)
    of_uuid = (m.Trial.uuid >= low) & (m.Trial.uuid < high)
    found = m.Trial.kernel_id.in_(kernels) | of_uuid
    return records(session, found, m.Trial.state == DONE, order=(m.Trial.id.desc(),), limit=NAMED_LIMIT)


def numbered(session: Session, study_id: int, number: int) -> list[TrialRecord]:
    """The finished trials of this number in a study: one, or several where merged copies of it went on apart."""
    conditions = (m.Trial.study_id == study_id, m.Trial.number == number, m.Trial.state == DONE)
    return records(session, *conditions, order=(m.Trial.id.desc(),))


def measurements(session: Session, trial_id: int) -> list[MeasurementRecord]:
    """Every measurement of a trial, in the order they were made."""
    query = (
        select(m.Measurement, m.Baseline)
        .outerjoin(m.Baseline, m.Baseline.measurement_id == m.Measurement.id)
        .where(m.Measurement.trial_id == trial_id)
        .order_by(m.Measurement.measured, m.Measurement.uuid)
    )
    return [_measurement(row, base) for row, base in session.execute(query)]


def _measurement(row: m.Measurement, base: m.Baseline | None) -> MeasurementRecord:
    data = MeasurementData(
        us=row.us,
        us_low=row.us_low,
        us_high=row.us_high,
        baseline_us=base.us if base else None,
        ratio=row.ratio,
        ratio_low=row.ratio_low,
        ratio_high=row.ratio_high,
        samples=unpack_samples(row.samples),
        baseline_samples=unpack_samples(base.samples) if base else (),
        estimated=row.estimated,
        clock_mhz=row.clock_mhz,
        throttle=row.throttle,
        counters=row.counters,
        baseline_name=base.name if base else "",
    )
    return MeasurementRecord(row.uuid, row.final, row.measured, data)


def exports(session: Session) -> list[ExportRecord]:
    """Exported packs, the latest first."""
    found = session.scalars(select(m.Export).order_by(m.Export.created.desc(), m.Export.id.desc())).all()
    cubins: dict[int, list[str]] = {}
    held = select(m.ExportCubin.export_id, m.Cubin.sha256).join(m.Cubin, m.Cubin.id == m.ExportCubin.cubin_id)
    for export_id, sha256 in session.execute(held.order_by(m.Cubin.sha256)):
        cubins.setdefault(export_id, []).append(sha256)
    return [ExportRecord(e.uuid, e.name, e.manifest_sha256, e.created, tuple(cubins.get(e.id, ()))) for e in found]


def by_id(session: Session, ids: Sequence[int]) -> dict[int, TrialRecord]:
    """Records of these trials."""
    out: dict[int, TrialRecord] = {}
    for start in range(0, len(ids), 500):
        out |= {r.id: r for r in _read(session, _records_by_id(), {"ids": ids[start : start + 500]})}
    return out


def studies(session: Session, wanted: Filter, limit: int | None) -> list[StudyRecord]:
    """Studies, the newest first, with their progress and the quickest kernel."""
    of_study = m.Trial.study_id == m.Study.id
    count = select(func.count()).select_from(m.Trial).where(of_study)
    leader = select(m.Trial.id).where(of_study, m.Trial.score.is_not(None))
    leader = leader.order_by(m.Trial.final.desc(), m.Trial.score, m.Trial.id).limit(1)
    # The few that are wanted are chosen first: a sort would count the trials of all the others, too.
    order = (m.Study.created.desc(), m.Study.id.desc())
    newest = select(m.Study.id).where(m.Study.id.in_(wanted.studies(session))).order_by(*order).limit(limit)
    query = (
        select(m.Study, m.Problem, m.Gpu, m.Environment)
        .add_columns(
            count.where(m.Trial.outcome.is_not(None)).scalar_subquery(),
            count.where(m.Trial.outcome == CORRECT).scalar_subquery(),
            leader.scalar_subquery(),
        )
        .join(m.Problem, m.Problem.id == m.Study.problem_id)
        .join(m.Gpu, m.Gpu.id == m.Study.gpu_id)
        .join(m.Environment, m.Environment.id == m.Study.environment_id)
        .where(m.Study.id.in_(session.scalars(newest).all()))
        .order_by(*order)
    )
    rows = session.execute(query).all()
    best = by_id(session, [row[-1] for row in rows if row[-1] is not None])
    return [
        StudyRecord(
            id=study.id,
            uuid=study.uuid,
            parent_uuid=study.parent_uuid,
            problem_key=problem.key,
            kind=study.kind,
            gpu=gpu_from_json(gpu.data),
            environment=environment.data,
            regime=study.regime,
            cache=study.cache,
            families=tuple(study.families),
            strategy=study.strategy,
            seed=study.seed,
            created=study.created,
            trials=trials_done,
            correct=correct,
            best=best.get(leader_id),
        )
        for study, problem, gpu, environment, trials_done, correct, leader_id in rows
    ]
