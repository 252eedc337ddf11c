"""Compact tables: one JSON object with the knobs once and a row of values and one time for each configuration.

``{"source", "device_name", "kernel_name", "tune_params_keys", "tune_params", "objective", "unit", "rows"}``, where
a row is the knobs' values in the order of ``tune_params_keys``, then the time (text or null where there is none). Of a
configuration that stands there twice, the first counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import RecordingError
from gemmtune.space.recorded.model import CORRECT, Recorded, Recording, observed, plain_value, read_time, with_listed
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
    rows: dict[str, Recorded] = {}
    for row in data["rows"]:
        if len(row) != len(knobs) + 1:
            raise RecordingError(f"The recording {name!r} has a row of {len(row)} fields instead of {len(knobs) + 1}.")
        values = dict(zip(knobs, map(plain_value, row), strict=False))
        time = read_time(row[-1])
        us = None if time is None else time * _MICROSECONDS[unit]
        detail = row[-1] if isinstance(row[-1], str) else ""
        one = Recorded(Configuration.of(family, values), FAILED if us is None else CORRECT, us, detail=detail)
        rows.setdefault(one.configuration.key, one)
    shown = observed([row.configuration for row in rows.values()])
    return Recording(
        name=name,
        device_name=str(data.get("device_name", "")),
        parameters=with_listed(shown, family, data["tune_params"]) if rows else {},
        rows=tuple(rows.values()),
        source=str(data.get("source", "")),
    )
