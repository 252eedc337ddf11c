"""Recordings made of studies: what a history knows of one problem, as a space to search again."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gemmtune.db import History, TrialRecord
from gemmtune.db.transfer import FORMAT
from gemmtune.device.base import Outcome
from gemmtune.space import families
from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.errors import GemmtuneError, RecordingError, UnknownNameError
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem, problem_from_json, shape_of
from gemmtune.space.recorded import Recorded, Recording, read_recording
from gemmtune.space.recorded.model import observed

STUDY = "study:"
"""Names a study of the user's own history, as in ``study:3``."""


def open_space(text: str, db: str | None = None) -> Recording:
    """The recorded space that ``text`` names: a file, ``study:ID`` of the history ``db``, or ``FILE#ID``, a study in a
    file that ``gemmtune db export`` wrote. Several numbers, ``3+4``, are joined.

    Raises:
        RecordingError: the file cannot be read, or the studies hold nothing or do not belong together.
        UnknownNameError: there is no such study; the message lists those there are.
        DatabaseError: the history cannot be read.
    """
    if text.startswith(STUDY):
        with History(db, create=False) as history:
            return recording_of(history, _numbers(text.removeprefix(STUDY)))
    path, mark, numbers = text.rpartition("#")
    if not mark:
        path, numbers = text, ""
    if not _is_history(path):
        return read_recording(text)
    with tempfile.TemporaryDirectory() as folder, History(Path(folder) / "history.sqlite") as history:
        history.merge(path)
        name = Path(path).name.removesuffix(".gz").removesuffix(".history")
        chosen = _numbers(numbers) if numbers else _only(history, path)
        return recording_of(history, chosen, prefix=f"{name}-", place=path)


def recording_of(history: History, study_ids: Sequence[int], prefix: str = "", place: str = "") -> Recording:
    """What the studies ``study_ids`` recorded, joined; of a configuration tried in several, the latest trial counts.

    Trials that failed for reasons of the machine say nothing of their configuration and are left out. The knobs have
    all values that their families give them, so that one step is one step; a family that has changed since has those
    that were tried.

    Args:
        history: where the studies are.
        study_ids: their numbers.
        prefix: of the recording's name, before the problem's shape.
        place: what messages call the history; by default where it is.

    Raises:
        UnknownNameError: there is no such study.
        RecordingError: they are of different problems, GPUs, environments or ways of timing, or hold no trial.
    """
    records: list[TrialRecord] = []
    for number in study_ids:
        if history.study(number) is None:
            raise UnknownNameError(
                f"There is no study {number} in {place or history.location}: it has {_listed(history)}."
            )
        records += history.trials(study_id=number, limit=None)
    kept: dict[str, TrialRecord] = {}
    for record in sorted(records, key=lambda r: (r.finished or 0.0, r.id)):
        if record.outcome != Outcome.INFRASTRUCTURE:
            kept[record.configuration_key] = record
    if not kept:
        raise RecordingError(f"No trial is finished in {', '.join(f'study {n}' for n in study_ids)}.")
    first = next(iter(kept.values()))
    for record in kept.values():
        if _circumstances(record) != _circumstances(first):
            raise RecordingError(
                "These studies cannot be one recording: their problem, GPU, environment, regime or cache differ."
            )
    problem = problem_from_json(first.problem_json)
    rows = tuple(_row(r) for r in sorted(kept.values(), key=lambda r: (r.study_id, r.number)))
    shape = shape_of(problem.axes)
    dtype = problem.environment().get("dtype", "")
    return Recording(
        name=f"{prefix}{first.gpu.short}-{shape}" + (f"-{dtype}" if dtype else ""),
        device_name=first.gpu.name,
        parameters=_parameters([row.configuration for row in rows], problem, first.gpu),
        rows=rows,
        source=f"Recorded by gemmtune on {first.gpu.name}.",
        protocol=f"{first.regime} clocks, {first.cache} cache; every kernel proved right before it was timed"
        + ("; times are ESTIMATES" if first.estimated else "; ratio to the baseline from interleaved pairs")
        + ".",
        problem=problem,
        gpu=first.gpu,
        estimated=any(r.estimated for r in kept.values()),
        regime=first.regime,
        cache=first.cache,
        environment=dict(first.environment),
    )


def _circumstances(record: TrialRecord) -> tuple[object, ...]:
    environment = json.dumps(dict(record.environment), sort_keys=True)
    return record.problem_key, record.gpu.key, record.kind, record.regime, record.cache, environment


def _row(record: TrialRecord) -> Recorded:
    """A trial's own time, not that among the finalists: all rows of a recording are to be timed in one way."""
    return Recorded(
        Configuration.parse(record.configuration),
        record.outcome,
        record.us,
        record.us_low,
        record.us_high,
        record.ratio,
        record.detail,
        record.registers,
        {stage: round(seconds, 6) for stage, seconds in record.seconds.items()},
    )


def _parameters(tried: list[Configuration], problem: Problem, gpu: Gpu) -> dict[str, tuple[Parameter, ...]]:
    shown = observed(tried)
    out: dict[str, tuple[Parameter, ...]] = {}
    for name, knobs in shown.items():
        out[name] = knobs
        try:
            full = families.family(name).parameters(problem, gpu)
        except GemmtuneError:
            continue
        values = {p.name: set(p.values) for p in full}
        if set(values) == {p.name for p in knobs} and all(set(p.values) <= values[p.name] for p in knobs):
            out[name] = full
    return out


def _numbers(text: str) -> list[int]:
    words = text.split("+")
    if not all(word.isascii() and word.isdigit() for word in words):
        raise UnknownNameError(f"{text!r} names no study: write its number, as in {STUDY}3, or several as 3+4.")
    return [int(word) for word in words]


def _only(history: History, path: str) -> list[int]:
    found = history.studies(limit=None)
    if len(found) != 1:
        raise UnknownNameError(f"Say which study of {path!r} is meant, as in {path}#1: it has {_listed(history)}.")
    return [found[0].id]


def _listed(history: History) -> str:
    found = sorted(history.studies(limit=None), key=lambda s: s.id)
    return ", ".join(f"{s.id} ({s.problem_key})" for s in found) or "none"


def _is_history(path: str) -> bool:
    """Whether ``path`` is a file that a history was exported to."""
    try:
        with gzip.open(path, "rb") as lines:
            head = lines.read(4096)
    except (OSError, EOFError):
        return False
    return f'"{FORMAT}"'.encode() in head.split(b"\n", 1)[0]
