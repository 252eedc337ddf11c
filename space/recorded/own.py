"""The format of gemmtune's own recordings: one JSON object, knobs once, rows as indices of their values.

``{"format": "gemmtune-recording", "schema": 1, <header>, "device_name", "extra", "families": [{"name", "parameters":
[{"name", "values", "doc"}]}], "rows": [[family, [value indices], outcome, us, us_low, us_high, ratio, registers,
detail, seconds, extra], ...]}``; empty fields at the end of a row are left out. Times are microseconds, stages seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.errors import RecordingError
from gemmtune.space.recorded.header import header_of, read_header
from gemmtune.space.recorded.model import Recorded, Recording

FORMAT, SCHEMA = "gemmtune-recording", 1
_FIELDS = ("outcome", "us", "us_low", "us_high", "ratio", "registers", "detail", "seconds", "extra")
_EMPTY: tuple[Any, ...] = (None, "", {})


def is_own(data: Mapping[str, Any]) -> bool:
    """Whether ``data`` is of this format."""
    return data.get("format") == FORMAT


def own_data(recording: Recording) -> dict[str, Any]:
    """The recording as plain data."""
    names = list(recording.parameters)
    places = {
        name: [(p.name, {value: i for i, value in enumerate(p.values)}) for p in knobs]
        for name, knobs in recording.parameters.items()
    }
    rows = []
    for row in recording.rows:
        c = row.configuration
        values = dict(c.items_)
        rest = [dict(v) if isinstance(v, Mapping) else v for v in (getattr(row, name) for name in _FIELDS)]
        while rest[-1] in _EMPTY:
            rest.pop()
        rows.append([names.index(c.family), [place[values[name]] for name, place in places[c.family]], *rest])
    families = [
        {"name": n, "parameters": [{"name": p.name, "values": list(p.values), "doc": p.doc} for p in knobs]}
        for n, knobs in recording.parameters.items()
    ]
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        **header_of(recording),
        "device_name": recording.device_name,
        "extra": dict(recording.extra),
        "families": families,
        "rows": rows,
    }


def read_own(data: Mapping[str, Any], name: str) -> Recording:
    """The recording that :func:`own_data` wrote; ``name`` where it bears none.

    Raises:
        RecordingError: it is of another schema, or a row points at no value.
    """
    if data.get("schema") != SCHEMA:
        raise RecordingError(
            f"The recording {name!r} is of schema {data.get('schema')!r}, but this gemmtune reads schema {SCHEMA}."
        )
    families = [
        (str(f["name"]), tuple(Parameter(p["name"], tuple(p["values"]), p.get("doc", "")) for p in f["parameters"]))
        for f in data["families"]
    ]
    rows = []
    for family, digits, *rest in data["rows"]:
        word, knobs = families[family]
        if len(digits) != len(knobs) or any(d < 0 for d in digits):
            raise RecordingError(f"The recording {name!r} has a row of other knobs than its family {word!r}.")
        values = {p.name: p.values[d] for p, d in zip(knobs, digits, strict=True)}
        rows.append(Recorded(Configuration.of(word, values), **dict(zip(_FIELDS, rest, strict=False))))
    header = read_header(data)
    return Recording(
        **{**header, "name": header.get("name") or name},
        device_name=str(data["device_name"]),
        parameters=dict(families),
        rows=tuple(rows),
        extra=data.get("extra", {}),
    )
