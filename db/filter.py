"""What a query of the history is narrowed to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, select

from gemmtune.db import models as m
from gemmtune.space.dtypes import DTYPES
from gemmtune.space.errors import ProblemError, UnknownNameError
from gemmtune.space.gpu import TABLE, is_called


@dataclass(frozen=True)
class Filter:
    """What a query is narrowed to; None admits everything.

    ``gpu`` is a short name, full name or device key, ``shape`` is like "4096x4096x4096".
    """

    gpu: str | None = None
    shape: str | None = None
    dtype: str | None = None
    family: str | None = None
    kind: str | None = None
    regime: str | None = None
    cache: str | None = None
    problem_key: str | None = None
    study_id: int | None = None

    def studies(self, connection: Connection) -> Select[Any]:
        """The ids of the studies it admits (the family is a trial's matter).

        Raises:
            UnknownNameError: a GPU or dtype that neither the history nor gemmtune knows.
            ProblemError: a malformed shape.
        """
        conditions: list[ColumnElement[bool]] = []
        query = select(m.study.c.id)
        if self.gpu is not None:
            conditions.append(m.study.c.gpu_id.in_(_gpu_ids(connection, self.gpu)))
        if self.shape is not None or self.dtype is not None or self.problem_key is not None:
            query = query.join(m.problem, m.problem.c.id == m.study.c.problem_id)
        if self.shape is not None:
            conditions.append(m.problem.c.shape == _shape(self.shape))
        if self.dtype is not None:
            _check_dtype(connection, self.dtype)
            conditions.append(m.problem.c.dtype == self.dtype)
        if self.problem_key is not None:
            conditions.append(m.problem.c.key == self.problem_key)
        exact: list[tuple[Any, object]] = [
            (m.study.c.kind, self.kind),
            (m.study.c.regime, self.regime),
            (m.study.c.cache, self.cache),
            (m.study.c.id, self.study_id),
        ]
        conditions += [column == value for column, value in exact if value is not None]
        return query.where(*conditions)


def _gpu_ids(connection: Connection, name: str) -> list[int]:
    rows = connection.execute(select(m.gpu.c.id, m.gpu.c.key, m.gpu.c.name, m.gpu.c.short)).all()
    found = [id_ for id_, key, full, short in rows if name == key or is_called(name, full, short)]
    is_key = "|" in name  # a device key comes from a program: a GPU that no study ran on yet is no mistake
    if not found and not is_key and not any(is_called(name, g.name, g.short) for g in TABLE.values()):
        known = ", ".join(sorted({short or full for _, _, full, short in rows})) or "none yet"
        raise UnknownNameError(f"Unknown GPU {name!r}: the history has {known}; give a short or full name.")
    return found


def _shape(text: str) -> str:
    shape = text.strip().lower()
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape):
        raise ProblemError(f"Shape {text!r} is malformed: write it as MxNxK, e.g. 4096x4096x4096.")
    return shape


def _check_dtype(connection: Connection, name: str) -> None:
    recorded = select(m.problem.c.id).where(m.problem.c.dtype == name).limit(1)
    if name not in DTYPES and connection.scalar(recorded) is None:
        raise UnknownNameError(f"Unknown dtype {name!r}: choose one of {', '.join(DTYPES)}.")
