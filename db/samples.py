"""Scores of many trials at once, without the rest of their records: for those who count and rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from gemmtune.db import models as m
from gemmtune.db.filter import Filter

if TYPE_CHECKING:
    from gemmtune.db.history import History


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
        for study in studies:
            if len(out) >= limit:
                break
            # In each half of the index (others, finalists) the scored trials stand together, by score.
            conditions = [m.Trial.study_id == study, m.Trial.final.in_((False, True)), m.Trial.score.is_not(None)]
            if wanted.family is not None:
                conditions.append(m.Trial.family == wanted.family)
            number = func.row_number().over(order_by=m.Trial.score).label("number")
            ranked = select(m.Trial.id, number).where(*conditions).subquery()
            every = max(1, -(-(session.scalar(select(func.count()).where(*conditions)) or 0) // limit))
            chosen = select(ranked.c.id).where((ranked.c.number - 1) % every == 0)
            query = select(m.Trial.study_id, m.Trial.family, m.Trial.configuration, m.Trial.score)
            rows = session.execute(query.where(m.Trial.id.in_(chosen)).order_by(m.Trial.id))
            out += [Sample(of, family, text, score or 0.0) for of, family, text, score in rows]
        return out
