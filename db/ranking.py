"""Rankings, done in SQL over the score that each trial carries (:func:`gemmtune.db.store.refresh_scores`).

Numbers of different devices, environments (drivers, versions) or regimes never meet in one ranking: a *board* is
(device kind, GPU key, environment, regime, cache, problem), and ranks count within it. A board's leaders are among its
studies' leaders, which an index gives without reading the rest, so that a million trials cost no more than a thousand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session, aliased

from gemmtune.db import models as m
from gemmtune.db.queries import Filter, by_id
from gemmtune.db.records import TrialRecord

_COMPARED = (m.Study.kind, m.Gpu.key, m.Study.regime, m.Study.cache, m.Problem.key)


def best(session: Session, wanted: Filter, limit: int | None) -> list[TrialRecord]:
    """The leaders of every board, the most recent board first, each configuration once; ``rank`` is within the board.

    ``limit`` rows in all are shared out evenly among the boards, at least one to each while they last.
    """
    each = limit and max(1, limit // max(1, _boards(session, wanted)))
    board = (*_COMPARED, m.Study.environment_id)
    leaders = _leaders(session, wanted, each).add_columns(
        func.max(m.Study.created).over(partition_by=board).label("newest"),
        _row_number([*board, m.Trial.configuration_key], m.Trial.score, m.Trial.id).label("copy"),
        *(column.label(f"board{i}") for i, column in enumerate(board)),
    )
    copies = leaders.subquery()
    columns = [copies.c[f"board{i}"] for i in range(len(board))]
    rank = _row_number(columns, copies.c.score, copies.c.id).label("rank")
    ranked = select(copies.c.id, copies.c.newest, *columns, rank).where(copies.c.copy == 1).subquery()
    order = (ranked.c.newest.desc(), *(ranked.c[f"board{i}"] for i in range(len(board))), ranked.c.rank)
    query = select(ranked.c.id, ranked.c.rank).order_by(*order).limit(limit)
    if each is not None:
        query = query.where(ranked.c.rank <= each)
    ranks = session.execute(query).all()
    found = by_id(session, [id_ for id_, _ in ranks])
    return [replace(found[id_], rank=number) for id_, number in ranks]


def best_kernels(session: Session, wanted: Filter) -> list[TrialRecord]:
    """For each device kind, GPU key, regime, cache and problem, the best correct kernel of one environment.

    That is the newest environment whose leader was measured as a finalist, else the newest: an interrupted search
    after a change of driver does not displace a finished one.
    """
    wide = [*_COMPARED, m.Study.environment_id]
    leaders = _leaders(session, wanted, 1).add_columns(
        m.Trial.final,
        func.max(m.Study.created).over(partition_by=wide).label("newest"),
        _row_number(wide, m.Trial.score, m.Trial.id).label("place"),
        *(column.label(f"board{i}") for i, column in enumerate(_COMPARED)),
    )
    firsts = leaders.subquery()
    columns = [firsts.c[f"board{i}"] for i in range(len(_COMPARED))]
    choice = _row_number(columns, firsts.c.final.desc(), firsts.c.newest.desc(), firsts.c.id.desc()).label("choice")
    chosen = select(firsts.c.id, *columns, choice).where(firsts.c.place == 1).subquery()
    order = [chosen.c[f"board{i}"] for i in range(len(_COMPARED))]
    ids = session.scalars(select(chosen.c.id).where(chosen.c.choice == 1).order_by(*order)).all()
    found = by_id(session, ids)
    return [replace(found[id_], rank=1) for id_ in ids]


def _boards(session: Session, wanted: Filter) -> int:
    board = (*_COMPARED, m.Study.environment_id)
    return len(session.execute(_studies(session, wanted, select(*board).distinct())).all())


def _leaders(session: Session, wanted: Filter, each: int | None) -> Select[Any]:
    """Id and score of the first ``each`` ranked trials of every study."""
    inner = aliased(m.Trial)
    first = select(inner.id).where(inner.study_id == m.Study.id, inner.score.is_not(None))
    if wanted.family is not None:
        first = first.where(inner.family == wanted.family)
    first = first.order_by(inner.score, inner.id).limit(each).correlate(m.Study)
    query = select(m.Trial.id.label("id"), m.Trial.score.label("score"))
    return _studies(session, wanted, query).join(m.Trial, m.Trial.id.in_(first))


def _studies(session: Session, wanted: Filter, query: Any) -> Select[Any]:
    joined: Select[Any] = (
        query.select_from(m.Study)
        .join(m.Gpu, m.Gpu.id == m.Study.gpu_id)
        .join(m.Problem, m.Problem.id == m.Study.problem_id)
    )
    return joined.where(m.Study.id.in_(wanted.studies(session)))


def _row_number(partition: Any, *order: Any) -> ColumnElement[int]:
    return func.row_number().over(partition_by=partition, order_by=order)
