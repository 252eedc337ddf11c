"""T4 results, format 1.0.0: what auto-tuners exchange.

Schema: ``results-schema.json`` of the TuningSchema project (``T4``), which Kernel Tuner ships and writes too. It has no
place for the GPU and the lists of values: what gemmtune knows of them stands under ``metadata``; from other files, the
values are those that the results show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.errors import RecordingError
from gemmtune.space.recorded.header import KEY, figures_of, header_of, read_figures, read_header
from gemmtune.space.recorded.kernel_tuner import one_family
from gemmtune.space.recorded.model import CORRECT, Recorded, Recording, foreign_value, observed, plain_value
from gemmtune.space.recorded.words import family_word

VERSION = "1.0.0"
INVALIDITY = {
    "correct": "correct",
    "abandoned": "correct",
    "pruned": "constraints",
    "compile": "compile",
    "timeout": "timeout",
    "wrong": "correctness",
}
"""The format's word for each outcome; those it has no word for failed at run time."""
_OUTCOMES = {
    "correct": CORRECT,
    "constraints": "pruned",
    "compile": "compile",
    "runtime": "launch",
    "timeout": "timeout",
    "correctness": "wrong",
}
_STAGES = {
    "compilation_time": "compile",
    "validation": "verify",
    "benchmark": "measure",
    "search_algorithm": "strategy",
    "framework": "framework",
}
_ALIASES = {"compilation": "compilation_time"}
"""Kernel Tuner writes ``compilation`` where the schema says ``compilation_time``."""
_SECONDS = {
    **dict.fromkeys(("s", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "millisecond", "milliseconds", ""), 1e-3),
    **dict.fromkeys(("us", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1e-9),
}


def is_t4(data: Mapping[str, Any]) -> bool:
    """Whether ``data`` is a results file."""
    return isinstance(data.get("results"), list) and "schema_version" in data


def read_t4(data: Mapping[str, Any], name: str) -> Recording:
    """The recording of a results file; of a configuration that stands there twice, the first counts.

    Raises:
        RecordingError: the version is another major one, a unit is unknown, or a correct result has no time.
    """
    version = str(data["schema_version"])
    if version.split(".")[0] != VERSION.split(".")[0]:
        raise RecordingError(f"The recording {name!r} is of T4 results {version}, but {VERSION} is what can be read.")
    metadata = data.get("metadata") or {}
    mine = metadata.get(KEY) or {}
    family = family_word(str(mine.get("family", metadata.get("kernel_name", "kernel"))))
    unit = str(metadata.get("timeunit", "milliseconds"))
    found: dict[str, Recorded] = {}
    for result in data["results"]:
        row = _row(family, result, unit, name)
        found.setdefault(row.configuration.key, row)
    rows = tuple(found.values())
    parameters = observed([row.configuration for row in rows])
    if "parameters" in mine:
        listed = mine["parameters"]
        parameters = {family: tuple(Parameter(k, tuple(map(plain_value, values))) for k, values in listed.items())}
    return Recording(
        **{"name": name, **read_header(mine.get("header", {}))},
        device_name=str(mine.get("device_name", metadata.get("device_name", ""))),
        parameters=parameters,
        rows=rows,
        extra={k: v for k, v in metadata.items() if k not in (KEY, "timeunit")},
    )


def _row(family: str, result: Mapping[str, Any], unit: str, name: str) -> Recorded:
    configuration = Configuration.of(family, {str(k): plain_value(v) for k, v in result["configuration"].items()})
    measured = {str(m["name"]): m for m in result.get("measurements", ())}
    mine = {key.removeprefix(f"{KEY}_"): m["value"] for key, m in measured.items() if key.startswith(f"{KEY}_")}
    outcome = _OUTCOMES[result["invalidity"]]
    told: dict[str, Any] = {"outcome": outcome}
    if outcome == CORRECT:
        time = measured.get("time") or measured.get(str((result.get("objectives") or ["time"])[0])) or {}
        value = time.get("value")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise RecordingError(f"The recording {name!r} has no time for '{configuration}', which is correct.")
        told["us"] = value * (_seconds(str(time.get("unit", "")), name) * 1e6)
    times = {_ALIASES.get(k, k): v for k, v in result["times"].items()}
    scale = _seconds(unit, name)
    extra: dict[str, Any] = {k: result[k] for k in ("timestamp",) if k in result}
    if times.get("runtimes"):
        extra["times"] = times["runtimes"]
    rest = [m for key, m in measured.items() if key != "time" and not key.startswith(f"{KEY}_")]
    if rest:
        extra["measurements"] = rest
    return Recorded(
        configuration,
        **{**told, **read_figures(mine)},
        seconds={stage: times[key] * scale for key, stage in _STAGES.items() if key in times},
        extra=extra,
    )


def _seconds(unit: str, name: str) -> float:
    if unit not in _SECONDS:
        raise RecordingError(f"The recording {name!r} has times in {unit!r}, which is no unit that can be read.")
    return _SECONDS[unit]


def t4_data(recording: Recording) -> dict[str, Any]:
    """The recording as T4 results; what they have no place for is a measurement whose name begins with ``gemmtune_``.

    Raises:
        RecordingError: it is of several families, which have different knobs.
    """
    family, knobs = one_family(recording, "T4 results")
    mine = {
        "header": header_of(recording),
        "family": family,
        "device_name": recording.device_name,
        "parameters": {p.name: [foreign_value(v) for v in p.values] for p in knobs},
    }
    metadata = {**recording.extra, "timeunit": "milliseconds", KEY: mine}
    return {"schema_version": VERSION, "results": [_result(row) for row in recording.rows], "metadata": metadata}


def _result(row: Recorded) -> dict[str, Any]:
    measurements = []
    if row.timed and row.us is not None:
        measurements.append({"name": "time", "value": row.us / 1e3, "unit": "ms"})
    measurements += row.extra.get("measurements", [])
    for key, value in figures_of(row).items():
        unit = "us" if key in ("us_low", "us_high") else ""
        measurements.append({"name": f"{KEY}_{key}", "value": value, "unit": unit})
    result: dict[str, Any] = {k: row.extra[k] for k in ("timestamp",) if k in row.extra}
    return {
        **result,
        "configuration": {k: foreign_value(v) for k, v in row.configuration.items()},
        "objectives": ["time"],
        "times": {
            **{key: 1e3 * row.seconds[stage] for key, stage in _STAGES.items() if stage in row.seconds},
            "runtimes": list(row.extra.get("times", [])),
        },
        "invalidity": INVALIDITY.get(row.outcome, "runtime"),
        "correctness": 0 if row.outcome == "wrong" else 1,
        "measurements": measurements,
    }
