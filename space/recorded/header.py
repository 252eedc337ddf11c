"""What gemmtune knows of a recording beside its rows, as plain data that any JSON format can carry along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from gemmtune.space.errors import RecordingError
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import problem_from_json
from gemmtune.space.recorded.model import Recorded, Recording

KEY = "gemmtune"
"""Where foreign formats keep it."""
_TEXTS = ("name", "source", "protocol", "regime", "cache")
_FIGURES = ("us_low", "us_high", "ratio", "registers", "detail")


def header_of(recording: Recording) -> dict[str, Any]:
    """Everything but parameters, rows and ``extra``."""
    return {
        **{name: getattr(recording, name) for name in _TEXTS},
        "estimated": recording.estimated,
        "environment": dict(recording.environment),
        "problem": None if recording.problem is None else recording.problem.to_json(),
        "gpu": None if recording.gpu is None else _gpu_to_json(recording.gpu),
    }


def read_header(data: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a :class:`Recording` from what :func:`header_of` wrote; none from an empty mapping.

    Raises:
        RecordingError: the GPU's fields are missing or of wrong types.
        ProblemError, UnknownNameError: the problem is not one that this gemmtune knows.
    """
    if not data:
        return {}
    problem, gpu = data.get("problem"), data.get("gpu")
    return {
        **{name: str(data[name]) for name in _TEXTS if name in data},
        "estimated": bool(data.get("estimated", False)),
        "environment": {str(k): str(v) for k, v in data.get("environment", {}).items()},
        "problem": None if problem is None else problem_from_json(problem),
        "gpu": None if gpu is None else _gpu_from_json(gpu),
    }


def figures_of(row: Recorded) -> dict[str, Any]:
    """What foreign formats have no place for: the exact outcome, the interval, the ratio, registers, the detail."""
    figures = {name: getattr(row, name) for name in _FIGURES}
    return {"outcome": row.outcome, **{name: value for name, value in figures.items() if value not in (None, "")}}


def read_figures(data: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a :class:`Recorded` from what :func:`figures_of` wrote."""
    return {name: data[name] for name in ("outcome", *_FIGURES) if name in data}


def _gpu_to_json(gpu: Gpu) -> dict[str, Any]:
    data = asdict(gpu)
    return {**data, "capability": list(gpu.capability), "peak": dict(gpu.peak)}


def _gpu_from_json(data: Mapping[str, Any]) -> Gpu:
    known = {f.name: data[f.name] for f in fields(Gpu) if f.name in data}
    try:
        major, minor = known.pop("capability")
        return Gpu(**known, capability=(int(major), int(minor)))
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingError(f"A recording's GPU lacks or misnames a field: {error}.") from None
