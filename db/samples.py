"""Scores of many trials at once, without the rest of their records: for those who count and rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

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
    with history.reading() as session:
        studies = session.scalars(wanted.studies(session).order_by(m.Study.id.desc())).all()
        out: list[Sample] = []
        for start in range(0, len(studies), TOGETHER):
            for study, count in _counts(session, wanted, studies[start : start + TOGETHER]).items():
                if len(out) >= limit:
                    return out
                out += _of_study(session, wanted, study, every=-(-count // limit))
        return out


def _counts(session: Session, wanted: Filter, studies: Sequence[int]) -> dict[int, int]:
    """How many samples each of these studies has, in their order; those without any are left out."""
    query = select(m.Trial.study_id, func.count()).where(*_scored(wanted, m.Trial.study_id.in_(studies)))
    found = {int(study): int(count) for study, count in session.execute(query.group_by(m.Trial.study_id))}
    return {study: found[study] for study in studies if study in found}


def _of_study(session: Session, wanted: Filter, study: int, every: int) -> list[Sample]:
    number = func.row_number().over(order_by=m.Trial.score).label("number")
    ranked = select(m.Trial.id, number).where(*_scored(wanted, m.Trial.study_id == study)).subquery()
    chosen = select(ranked.c.id).where((ranked.c.number - 1) % every == 0)
    query = select(m.Trial.family, m.Trial.configuration, m.Trial.score).where(m.Trial.id.in_(chosen))
    rows = session.execute(query.order_by(m.Trial.id))
    return [Sample(study, family, text, score) for family, text, score in rows if score is not None]


def _scored(wanted: Filter, of_study: ColumnElement[bool]) -> list[ColumnElement[bool]]:
    # In each half of the index (others, finalists) the scored trials of a study stand together, by score.
    conditions = [of_study, m.Trial.final.in_((False, True)), m.Trial.score.is_not(None)]
    return conditions if wanted.family is None else [*conditions, m.Trial.family == wanted.family]
