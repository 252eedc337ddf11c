"""Rankings: SQL finds who may stand in front, and :func:`gemmtune.db.standing.standing` has the last word.

Numbers of different devices, environments (drivers, versions) or regimes never meet in one ranking: a *board* is
(device kind, GPU key, environment, regime, cache, problem), and ranks count within it. A board's leaders are among its
studies' leaders, which an index gives without reading the rest, so that a million trials cost no more than a thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, case, func, or_, select

from gemmtune.db import models as m
from gemmtune.db.filter import Filter
from gemmtune.db.reading import by_id
from gemmtune.db.records import StudyRecord, TrialRecord
from gemmtune.db.standing import standing

_COMPARED = (m.study.c.kind, m.gpu.c.key, m.study.c.regime, m.study.c.cache, m.problem.c.key)

WIDEST = 1.25
"""More than the end of an interval is away from its median: wider ones (10 % either way) are no answers."""
TOGETHER, MOST_TOGETHER = 50, 400
"""Boards that are looked at together: the first of them fill most answers."""


@dataclass(frozen=True)
class _Board:
    """What identifies a board (see above), and the ids of its studies."""

    key: tuple[Any, ...]
    studies: tuple[int, ...]


def best(connection: Connection, wanted: Filter, limit: int | None) -> list[TrialRecord]:
    """The leaders of every board, the most recent board first, each configuration once; ``rank`` is within the board.

    ``limit`` rows in all are shared out evenly among the boards, at least one to each while they last.
    """
    boards = _boards(connection, wanted)
    each = limit and max(1, limit // max(1, len(boards)))
    out: list[TrialRecord] = []
    together = TOGETHER
    while boards and (limit is None or len(out) < limit):
        # Boards without a right kernel give no rows: then the next ones are asked, more of them.
        out += _of_boards(connection, wanted, boards[:together], each, None if limit is None else limit - len(out))
        boards, together = boards[together:], min(2 * together, MOST_TOGETHER)
    return out


def _of_boards(
    connection: Connection, wanted: Filter, boards: Sequence[_Board], each: int | None, limit: int | None
) -> list[TrialRecord]:
    """The ``each`` leaders of these boards, in their order, ``limit`` in all."""
    board = (*_COMPARED, m.study.c.environment_id)
    leaders = _leaders(connection, wanted, each, [id_ for one in boards for id_ in one.studies]).add_columns(
        _row_number([*board, m.trial.c.configuration_key], m.trial.c).label("copy"),
        *(column.label(f"board{i}") for i, column in enumerate(board)),
    )
    copies = leaders.subquery()
    columns = [copies.c[f"board{i}"] for i in range(len(board))]
    rank = _row_number(columns, copies.c).label("rank")
    ranked = select(copies.c.id, *columns, rank).where(copies.c.copy == 1).subquery()
    named = [ranked.c[f"board{i}"] for i in range(len(board))]
    query = select(*named, ranked.c.id).order_by(*named, ranked.c.rank)
    if each is not None:
        query = query.where(ranked.c.rank <= each)
    ids: dict[tuple[Any, ...], list[int]] = {}
    for *key, id_ in connection.execute(query):
        ids.setdefault(tuple(key), []).append(id_)
    held = [ids[one.key] for one in boards if one.key in ids]
    ends = accumulate(map(len, held))
    shown = [group for group, end in zip(held, ends, strict=True) if limit is None or end - len(group) < limit]
    found = by_id(connection, [id_ for group in shown for id_ in group])
    out = [record for group in shown for record in _standing(connection, wanted, [found[id_] for id_ in group])]
    return out[:limit]


def best_kernels(connection: Connection, wanted: Filter) -> list[TrialRecord]:
    """For each device kind, GPU key, regime, cache and problem, the best correct kernel of one environment.

    That is the newest environment whose leader was measured as a finalist, else the newest: an interrupted search
    after a change of driver does not displace a finished one.
    """
    leaders = _leaders(connection, wanted, 1).add_columns(
        func.max(m.study.c.created).over(partition_by=[*_COMPARED, m.study.c.environment_id]).label("newest"),
        _row_number([*_COMPARED, m.study.c.environment_id], m.trial.c).label("place"),
        *(column.label(f"board{i}") for i, column in enumerate(_COMPARED)),
    )
    firsts = leaders.subquery()
    columns = [firsts.c[f"board{i}"] for i in range(len(_COMPARED))]
    order = (firsts.c.final.desc(), firsts.c.newest.desc(), firsts.c.id.desc())
    choice = func.row_number().over(partition_by=columns, order_by=order).label("choice")
    chosen = select(firsts.c.id, *columns, choice).where(firsts.c.place == 1).subquery()
    named = [chosen.c[f"board{i}"] for i in range(len(_COMPARED))]
    ids = connection.scalars(select(chosen.c.id).where(chosen.c.choice == 1).order_by(*named)).all()
    found = by_id(connection, ids)
    return [_standing(connection, wanted, [found[id_]])[0] for id_ in ids]


def with_winners(connection: Connection, studies: Sequence[StudyRecord]) -> list[StudyRecord]:
    """``studies``, each with the winner among the equals of its leader."""
    return [
        replace(study, best=_standing(connection, Filter(study_id=study.id), [study.best])[0]) if study.best else study
        for study in studies
    ]


def _standing(connection: Connection, wanted: Filter, leaders: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The leaders of one board (at least one, the quickest first) as they stand among all of the board's equals.

    There are as many as before: an equal that comes in for its simplicity takes the place of the last.
    """
    missing = set(_equals(connection, wanted, leaders[0])) - {record.id for record in leaders}
    once: dict[str, TrialRecord] = {}
    for record in standing([*leaders, *by_id(connection, sorted(missing)).values()]):
        once.setdefault(record.configuration_key, record)
    return [replace(record, rank=i) for i, record in enumerate(list(once.values())[: len(leaders)], 1)]


def _equals(connection: Connection, wanted: Filter, quickest: TrialRecord) -> Sequence[int]:
    """Ids of the trials on the board of ``quickest`` that may be its equals: all that are, itself among them.

    Of a trial that was measured more than once any measurement will do here; which one counts is for
    :func:`gemmtune.db.standing.standing` to say.
    """
    timing = quickest.timing
    assert timing is not None  # noqa: S101 - it has a score
    board = replace(
        wanted,
        gpu=quickest.gpu.key,
        kind=quickest.kind,
        regime=quickest.regime,
        cache=quickest.cache,
        problem_key=quickest.problem_key,
    )
    environment = select(m.study.c.environment_id).where(m.study.c.id == quickest.study_id).scalar_subquery()
    best = case((m.measurement.c.ratio.is_(None), m.measurement.c.us_low), else_=-m.measurement.c.ratio_high)
    bound = timing.score_bound
    farthest = bound / WIDEST if bound < 0 else bound * WIDEST  # which an index finds
    reach = select(m.measurement.c.id).where(m.measurement.c.trial_id == m.trial.c.id, best <= bound).exists()
    query = (
        _studies(connection, board, select(m.trial.c.id))
        .join(m.trial, m.trial.c.study_id == m.study.c.id)
        .where(m.study.c.environment_id == environment)
        .where(m.trial.c.final.is_(timing.final), m.trial.c.score <= farthest, or_(m.trial.c.score <= bound, reach))
    )
    if wanted.family is not None:
        query = query.where(m.trial.c.family == wanted.family)
    return connection.scalars(query).all()


def _boards(connection: Connection, wanted: Filter) -> list[_Board]:
    """The boards with their studies, the most recent first."""
    board = (*_COMPARED, m.study.c.environment_id)
    newest: dict[tuple[Any, ...], float] = {}
    studies: dict[tuple[Any, ...], list[int]] = {}
    for *columns, id_, created in connection.execute(
        _studies(connection, wanted, select(*board, m.study.c.id, m.study.c.created))
    ):
        key = tuple(columns)
        newest[key] = max(created, newest.get(key, created))
        studies.setdefault(key, []).append(id_)
    return [_Board(key, tuple(studies[key])) for key in sorted(newest, key=lambda key: (-newest[key], key))]


def _leaders(
    connection: Connection, wanted: Filter, each: int | None, studies: Sequence[int] | None = None
) -> Select[Any]:
    """Id, score and ``final`` of the first ``each`` finalists of every study, and of the first ``each`` others.

    Of all studies that are wanted, or of ``studies`` alone, which are some of those.
    """
    inner = m.trial.alias().c
    first = select(inner.id).where(inner.study_id == m.study.c.id, inner.score.is_not(None))
    if wanted.family is not None:
        first = first.where(inner.family == wanted.family)
    first = first.order_by(inner.score, inner.id).limit(each).correlate(m.study)
    query = select(m.trial.c.id.label("id"), m.trial.c.score.label("score"), m.trial.c.final.label("final"))
    leading = or_(*(m.trial.c.id.in_(first.where(inner.final.is_(final))) for final in (True, False)))
    of_studies = wanted.studies(connection) if studies is None else studies
    return _described(query).where(m.study.c.id.in_(of_studies)).join(m.trial, leading)


def _studies(connection: Connection, wanted: Filter, query: Any) -> Select[Any]:
    return _described(query).where(m.study.c.id.in_(wanted.studies(connection)))


def _described(query: Any) -> Select[Any]:
    joined: Select[Any] = (
        query.select_from(m.study)
        .join(m.gpu, m.gpu.c.id == m.study.c.gpu_id)
        .join(m.problem, m.problem.c.id == m.study.c.problem_id)
    )
    return joined


def _row_number(partition: Sequence[Any], trial: Any) -> ColumnElement[int]:
    """The place of a trial among those of its partition, as :func:`gemmtune.db.standing.standing` orders them."""
    return func.row_number().over(partition_by=partition, order_by=(trial.final.desc(), trial.score, trial.id))
