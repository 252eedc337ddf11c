"""Queries of a history: the records that a filter gives. Rankings are in :mod:`gemmtune.db.ranking`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select

from gemmtune.db import models as m
from gemmtune.db.filter import Filter
from gemmtune.db.reading import by_id, records
from gemmtune.db.records import (
    CORRECT,
    STOPPED,
    ExportRecord,
    FailureGroup,
    MeasurementData,
    MeasurementRecord,
    StudyRecord,
    TrialRecord,
    VerificationData,
)
from gemmtune.db.store import gpu_from_json, unpack_samples

DONE = "done"
CLAIMED = "claimed"
NAMED_LIMIT = 200


def trials(connection: Connection, wanted: Filter, outcome: str | None, limit: int | None) -> list[TrialRecord]:
    """Finished trials, the newest study first, each study's latest trial first."""
    order = (m.study.c.id.desc(), m.trial.c.number.desc(), m.trial.c.id.desc())
    # Studies outside, trials inside: an index gives each study's trials in this order, and the limit stops it early.
    query = select(m.trial.c.id).join(m.study, m.study.c.id == m.trial.c.study_id).order_by(*order).limit(limit)
    query = query.where(m.study.c.id.in_(wanted.studies(connection)))
    query = query.where(m.trial.c.outcome == outcome if outcome else m.trial.c.state == DONE)
    if wanted.family is not None:
        query = query.where(m.trial.c.family == wanted.family)
    ids = connection.scalars(query).all()
    found = by_id(connection, ids)
    return [found[id_] for id_ in ids]


def failures(connection: Connection, wanted: Filter, outcome: str | None, limit: int | None) -> list[FailureGroup]:
    """Failed trials by outcome and pattern of their detail, the most frequent first.

    Those that were cut short (:data:`STOPPED`) did not fail, and are given where ``outcome`` asks for them alone.
    """
    known = [name for name in _known_outcomes(connection) if name != CORRECT and name not in STOPPED]
    failed = [outcome] if outcome else known
    # All that it reads stands in one index, in the order of the groups, but for the right trials, which are the most.
    conditions = [m.trial.c.outcome.in_(failed), *_of_family(wanted)]
    if replace(wanted, family=None) != Filter():
        # "+ 0" keeps the planner on that index; study by study it would have to look each trial up, and sort them all.
        conditions.append((m.trial.c.study_id + 0).in_(wanted.studies(connection)))
    group = (m.trial.c.outcome, m.trial.c.pattern, m.trial.c.family)
    query = select(*group, func.count(), func.max(m.trial.c.id)).where(*conditions).group_by(*group)
    counts: dict[tuple[str, str], dict[str, int]] = {}
    latest: dict[tuple[str, str], int] = {}
    for out, pattern, family, count, id_ in connection.execute(query):
        key = (str(out), pattern)
        counts.setdefault(key, {})[family] = count
        latest[key] = max(id_, latest.get(key, id_))
    shown = sorted(counts, key=lambda key: (-sum(counts[key].values()), key))[:limit]
    examples = by_id(connection, [latest[key] for key in shown])
    return [
        FailureGroup(
            *key,
            sum(counts[key].values()),
            examples[latest[key]],
            dict(sorted(counts[key].items(), key=lambda pair: (-pair[1], pair[0]))),
        )
        for key in shown
    ]


def outcomes(connection: Connection, wanted: Filter) -> dict[str, int]:
    """How many finished trials ended in each way, the most frequent first."""
    if wanted == Filter():
        return _all_outcomes(connection)
    conditions = [m.trial.c.outcome.is_not(None), *_of_family(wanted)]
    group: list[Any] = [m.trial.c.outcome]
    if replace(wanted, family=None) != Filter():
        if wanted.family is None:  # an index has the outcomes of each study, but not their families
            group.insert(0, m.trial.c.study_id)
            conditions.append(m.trial.c.study_id.in_(wanted.studies(connection)))
        else:
            conditions.append((m.trial.c.study_id + 0).in_(wanted.studies(connection)))  # see failures()
    counts = select(m.trial.c.outcome, func.count().label("n")).where(*conditions).group_by(*group).subquery()
    found: dict[str, int] = {}
    for out, n in connection.execute(select(counts.c.outcome, func.sum(counts.c.n)).group_by(counts.c.outcome)):
        found[str(out)] = int(n)
    return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))


def _all_outcomes(connection: Connection) -> dict[str, int]:
    """The same of the whole history: what is left of all its rows, which are counted fastest, are the right ones."""

    def count(*conditions: ColumnElement[bool]) -> int:
        return connection.scalar(select(func.count()).select_from(m.trial).where(*conditions)) or 0

    found = {name: count(m.trial.c.outcome == name) for name in _known_outcomes(connection) if name != CORRECT}
    found[CORRECT] = count() - count(m.trial.c.outcome.is_(None)) - sum(found.values())
    return {name: n for name, n in sorted(found.items(), key=lambda pair: (-pair[1], pair[0])) if n}


def _of_family(wanted: Filter) -> list[ColumnElement[bool]]:
    return [] if wanted.family is None else [m.trial.c.family == wanted.family]


def _known_outcomes(connection: Connection) -> list[str]:
    """Every outcome there is: from each to the next in an index, which is quicker than to read it."""
    out: list[str] = []
    following = select(func.min(m.trial.c.outcome))
    name = connection.scalar(following)
    while name is not None:
        out.append(name)
        name = connection.scalar(following.where(m.trial.c.outcome > name))
    return out


def verification(connection: Connection, trial_id: int) -> VerificationData | None:
    """The proof of a trial's kernel with every check it consists of, or None."""
    row = connection.execute(select(m.verification).where(m.verification.c.trial_id == trial_id)).first()
    if row is None:
        return None
    return VerificationData(
        row.passed, row.rel_error, row.error_bound, row.excess, tuple(row.checks), row.coverage, row.detail
    )


def find(connection: Connection, wanted: Filter, configuration_key: str) -> list[TrialRecord]:
    """Finished trials of one configuration, the latest first."""
    studies = m.trial.c.study_id.in_(wanted.studies(connection))
    conditions = (studies, m.trial.c.configuration_key == configuration_key, m.trial.c.state == DONE)
    return records(connection, *conditions, order=(m.trial.c.finished.desc(), m.trial.c.id.desc()))


def named(connection: Connection, start: str) -> list[TrialRecord]:
    """Finished trials whose uuid, or whose kernel's cubin hash, starts with ``start`` (lower-case hex digits).

    Some hundred at most, the latest first: a start that more trials share tells nobody which one is meant.
    """
    low, high = start, start + "g"  # the digit after f: a range, so that the indices serve
    kernels = select(m.kernel.c.id).where(m.kernel.c.cubin_sha256 >= low, m.kernel.c.cubin_sha256 < high)
    of_uuid = (m.trial.c.uuid >= low) & (m.trial.c.uuid < high)
    found = m.trial.c.kernel_id.in_(kernels) | of_uuid
    return records(connection, found, m.trial.c.state == DONE, order=(m.trial.c.id.desc(),), limit=NAMED_LIMIT)


def numbered(connection: Connection, study_id: int, number: int) -> list[TrialRecord]:
    """The finished trials of this number in a study: one, or several where merged copies of it went on apart."""
    conditions = (m.trial.c.study_id == study_id, m.trial.c.number == number, m.trial.c.state == DONE)
    return records(connection, *conditions, order=(m.trial.c.id.desc(),))


def measurements(connection: Connection, trial_id: int) -> list[MeasurementRecord]:
    """Every measurement of a trial, in the order they were made."""
    base = m.baseline.c
    query = (
        select(m.measurement, *(base[name].label(f"baseline_{name}") for name in ("name", "us", "samples")))
        .outerjoin(m.baseline, base.measurement_id == m.measurement.c.id)
        .where(m.measurement.c.trial_id == trial_id)
        .order_by(m.measurement.c.measured, m.measurement.c.uuid)
    )
    return [_measurement(row) for row in connection.execute(query)]


def _measurement(row: Any) -> MeasurementRecord:
    data = MeasurementData(
        us=row.us,
        us_low=row.us_low,
        us_high=row.us_high,
        baseline_us=row.baseline_us,
        ratio=row.ratio,
        ratio_low=row.ratio_low,
        ratio_high=row.ratio_high,
        samples=unpack_samples(row.samples),
        baseline_samples=unpack_samples(row.baseline_samples or b""),
        estimated=row.estimated,
        clock_mhz=row.clock_mhz,
        throttle=row.throttle,
        counters=row.counters,
        baseline_name=row.baseline_name or "",
    )
    return MeasurementRecord(row.uuid, row.final, row.measured, data)


def exports(connection: Connection) -> list[ExportRecord]:
    """Exported packs, the latest first."""
    found = connection.execute(select(m.export).order_by(m.export.c.created.desc(), m.export.c.id.desc())).all()
    cubins: dict[int, list[str]] = {}
    held = select(m.export_cubin.c.export_id, m.cubin.c.sha256).join(m.cubin, m.cubin.c.id == m.export_cubin.c.cubin_id)
    for export_id, sha256 in connection.execute(held.order_by(m.cubin.c.sha256)):
        cubins.setdefault(export_id, []).append(sha256)
    return [ExportRecord(e.uuid, e.name, e.manifest_sha256, e.created, tuple(cubins.get(e.id, ()))) for e in found]


def studies(connection: Connection, wanted: Filter, limit: int | None) -> list[StudyRecord]:
    """Studies, the newest first, with their progress and the quickest kernel."""
    of_study = m.trial.c.study_id == m.study.c.id
    count = select(func.count()).select_from(m.trial).where(of_study)
    leader = select(m.trial.c.id).where(of_study, m.trial.c.score.is_not(None))
    leader = leader.order_by(m.trial.c.final.desc(), m.trial.c.score, m.trial.c.id).limit(1)
    # The few that are wanted are chosen first: a sort would count the trials of all the others, too.
    order = (m.study.c.created.desc(), m.study.c.id.desc())
    newest = select(m.study.c.id).where(m.study.c.id.in_(wanted.studies(connection))).order_by(*order).limit(limit)
    query = (
        select(
            m.study,
            m.problem.c.key.label("problem_key"),
            m.gpu.c.data.label("gpu"),
            m.environment.c.data.label("environment"),
            count.where(m.trial.c.outcome.is_not(None)).scalar_subquery().label("trials"),
            count.where(m.trial.c.outcome == CORRECT).scalar_subquery().label("correct"),
            leader.scalar_subquery().label("leader"),
        )
        .select_from(m.study)
        .join(m.problem, m.problem.c.id == m.study.c.problem_id)
        .join(m.gpu, m.gpu.c.id == m.study.c.gpu_id)
        .join(m.environment, m.environment.c.id == m.study.c.environment_id)
        .where(m.study.c.id.in_(connection.scalars(newest).all()))
        .order_by(*order)
    )
    rows = connection.execute(query).all()
    best = by_id(connection, [row.leader for row in rows if row.leader is not None])
    return [
        StudyRecord(
            id=row.id,
            uuid=row.uuid,
            parent_uuid=row.parent_uuid,
            problem_key=row.problem_key,
            kind=row.kind,
            gpu=gpu_from_json(row.gpu),
            environment=row.environment,
            regime=row.regime,
            cache=row.cache,
            families=tuple(row.families),
            strategy=row.strategy,
            seed=row.seed,
            created=row.created,
            trials=row.trials,
            correct=row.correct,
            best=best.get(row.leader),
        )
        for row in rows
    ]
