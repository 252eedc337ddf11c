"""Scores of many trials at once, without the rest of their records: for those who count and rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Connection, func, select

from gemmtune.db import models as m
from gemmtune.db.filter import Filter

if TYPE_CHECKING:
    from gemmtune.db.history import History

TOGETHER = 50
"""Studies whose trials are counted together."""


@dataclass(frozen=True)
class Sample:
    """A correct trial: its study, family, configuration's text, and score (the smaller the better, in its study)."""

    study_id: int
    family: str
    configuration: str
    score: float


def samples(history: History, wanted: Filter, limit: int) -> list[Sample]:
    """Correct trials, the newest study first, whole studies until there are ``limit`` trials or more; at least one.

    Of a study larger than ``limit``, every so many-th trial in the order of their scores, so that it is drawn evenly.

    Raises:
        UnknownNameError: a GPU or dtype that neither the history nor gemmtune knows.
        ProblemError: a malformed shape.
    """
    with history.reading() as connection:
        studies = connection.scalars(wanted.studies(connection).order_by(m.study.c.id.desc())).all()
        out: list[Sample] = []
        for start in range(0, len(studies), TOGETHER):
            for study, count in _counts(connection, wanted, studies[start : start + TOGETHER]).items():
                if len(out) >= limit:
                    return out
                out += _of_study(connection, wanted, study, every=-(-count // limit))
        return out


def _counts(connection: Connection, wanted: Filter, studies: Sequence[int]) -> dict[int, int]:
    """How many samples each of these studies has, in their order; those without any are left out."""
    query = select(m.trial.c.study_id, func.count()).where(*_scored(wanted, m.trial.c.study_id.in_(studies)))
    found = {int(study): int(count) for study, count in connection.execute(query.group_by(m.trial.c.study_id))}
    return {study: found[study] for study in studies if study in found}


def _of_study(connection: Connection, wanted: Filter, study: int, every: int) -> list[Sample]:
    number = func.row_number().over(order_by=m.trial.c.score).label("number")
    ranked = select(m.trial.c.id, number).where(*_scored(wanted, m.trial.c.study_id == study)).subquery()
    chosen = select(ranked.c.id).where((ranked.c.number - 1) % every == 0)
    query = select(m.trial.c.family, m.trial.c.configuration, m.trial.c.score).where(m.trial.c.id.in_(chosen))
    rows = connection.execute(query.order_by(m.trial.c.id))
    return [Sample(study, family, text, score) for family, text, score in rows if score is not None]


def _scored(wanted: Filter, of_study: ColumnElement[bool]) -> list[ColumnElement[bool]]:
    # In each half of the index (others, finalists) the scored trials of a study stand together, by score.
    conditions = [of_study, m.trial.c.final.in_((False, True)), m.trial.c.score.is_not(None)]
    return conditions if wanted.family is None else [*conditions, m.trial.c.family == wanted.family]
