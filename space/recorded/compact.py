"""Compact tables: one JSON object with the knobs once and a row of values and one time for each configuration.

``{"source", "device_name", "kernel_name", "tune_params_keys", "tune_params", "objective", "unit", "rows"}``, where
a row is the knobs' values in the order of ``tune_params_keys``, then the time (text or null where there is none).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.errors import RecordingError
from gemmtune.space.recorded.model import CORRECT, Recorded, Recording, plain_value
from gemmtune.space.recorded.words import family_word

FAILED = "launch"
"""The outcome of rows without a time: the table does not say how they failed."""
_MICROSECONDS = {"us": 1.0, "ms": 1e3, "s": 1e6, "ns": 1e-3}


def is_compact(data: Mapping[str, Any]) -> bool:
    """Whether ``data`` is such a table."""
    return {"rows", "tune_params", "tune_params_keys", "unit"} <= set(data)


def read_compact(data: Mapping[str, Any], name: str) -> Recording:
    """The recording of a compact table.

    Raises:
        RecordingError: the unit is unknown, or a row is too short.
    """
    unit = data["unit"]
    if unit not in _MICROSECONDS:
        raise RecordingError(
            f"The recording {name!r} has times in {unit!r}: they are read in {', '.join(_MICROSECONDS)}."
        )
    family = family_word(str(data.get("kernel_name", "kernel")))
    knobs = [str(k) for k in data["tune_params_keys"]]
    parameters = tuple(Parameter(k, tuple(plain_value(v) for v in data["tune_params"][k])) for k in knobs)
    rows = []
    for row in data["rows"]:
        if len(row) != len(knobs) + 1:
            raise RecordingError(f"The recording {name!r} has a row of {len(row)} fields instead of {len(knobs) + 1}.")
        values = dict(zip(knobs, map(plain_value, row), strict=False))
        time = row[-1]
        timed = isinstance(time, int | float) and not isinstance(time, bool)
        us = time * _MICROSECONDS[unit] if timed else None
        detail = "" if timed or time is None else str(time)
        rows.append(Recorded(Configuration.of(family, values), CORRECT if timed else FAILED, us, detail=detail))
    return Recording(
        name=name,
        device_name=str(data.get("device_name", "")),
        parameters={family: parameters},
        rows=tuple(rows),
        source=str(data.get("source", "")),
    )
