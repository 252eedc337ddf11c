"""Cache files of Kernel Tuner, read and written; its simulation mode reads ours.

Format: the docstring of ``process_cache`` in Kernel Tuner's ``util.py`` (1.x): ``{"device_name", "kernel_name",
"problem_size", "tune_params_keys", "tune_params", "objective", "cache": {"v1,v2,...": {knobs, "time": ms, ...}}}``.
A configuration that failed has a class name instead of a time (or in ``__error__``). Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.errors import RecordingError
from gemmtune.space.recorded.header import KEY, figures_of, header_of, read_figures, read_header
from gemmtune.space.recorded.model import (
    CORRECT,
    Recorded,
    Recording,
    foreign_value,
    observed,
    plain_value,
    read_time,
    with_listed,
)
from gemmtune.space.recorded.words import family_word

_OUTCOMES = {
    "InvalidConfig": "pruned",
    "CompilationFailedConfig": "compile",
    "RuntimeFailedConfig": "launch",
    "ErrorConfig": "launch",
}
_ERRORS = {"pruned": "InvalidConfig", "compile": "CompilationFailedConfig"}
"""Every other failure is Kernel Tuner's ``RuntimeFailedConfig``."""
_STAGES = {
    "compile_time": "compile",
    "verification_time": "verify",
    "benchmark_time": "measure",
    "strategy_time": "strategy",
    "framework_time": "framework",
}
_MINE = f"{KEY}_"
"""What gemmtune adds to an entry begins so."""
_HEADER = ("problem_size", "kernel_name", "objective")


def is_kernel_tuner(data: Mapping[str, Any]) -> bool:
    """Whether ``data`` is a cache file."""
    return isinstance(data.get("cache"), Mapping) and "tune_params_keys" in data


def read_kernel_tuner(data: Mapping[str, Any], name: str) -> Recording:
    """The recording of a cache file.

    Raises:
        RecordingError: an entry has neither a time nor an error.
    """
    family = family_word(str(data.get("kernel_name", "kernel")))
    knobs = [str(k) for k in data["tune_params_keys"]]
    rows = tuple(_row(family, knobs, entry, name) for entry in data["cache"].values())
    parameters = observed([row.configuration for row in rows])
    listed = data.get("tune_params")
    if isinstance(listed, Mapping) and rows:
        parameters = with_listed(parameters, family, listed)
    return Recording(
        **{"name": name, **read_header(data.get(KEY, {}))},
        device_name=str(data.get("device_name", "")),
        parameters=parameters,
        rows=rows,
        extra={key: data[key] for key in _HEADER if key in data},
    )


def _row(family: str, knobs: list[str], entry: Mapping[str, Any], name: str) -> Recorded:
    configuration = Configuration.of(family, {k: plain_value(entry[k]) for k in knobs})
    mine = {k.removeprefix(_MINE): v for k, v in entry.items() if k.startswith(_MINE)}
    time = entry.get("__error__", entry.get("time"))
    number = read_time(time)
    if isinstance(time, str) and time in _OUTCOMES:
        told: dict[str, Any] = {"outcome": _OUTCOMES[time]}
    elif number is not None:
        told = {"outcome": CORRECT, "us": number * 1e3}
    elif isinstance(time, int | float):
        told = {"outcome": _OUTCOMES["ErrorConfig"]}
    else:
        raise RecordingError(f"The recording {name!r} has for '{configuration}' the time {time!r}, which is none.")
    known = {*knobs, *_STAGES, "time", "__error__"}
    return Recorded(
        configuration,
        **{**told, **read_figures(mine)},
        seconds={stage: entry[key] / 1e3 for key, stage in _STAGES.items() if key in entry},
        extra={k: v for k, v in entry.items() if k not in known and not k.startswith(_MINE)},
    )


def kernel_tuner_data(recording: Recording) -> dict[str, Any]:
    """The recording as a cache file, with what gemmtune knows besides under keys of its own.

    Raises:
        RecordingError: it is of several families, which have different knobs.
    """
    family, knobs = one_family(recording, "Kernel Tuner's cache files")
    sizes = list(recording.problem.axes.values()) if recording.problem else []
    own = {"kernel_name": family, "problem_size": sizes, "objective": "time"}
    cache: dict[str, dict[str, Any]] = {}
    for row in recording.rows:
        values = {p.name: foreign_value(row.configuration[p.name]) for p in knobs}
        entry: dict[str, Any] = {**values, **row.extra}
        entry["time"] = row.us / 1e3 if row.timed and row.us is not None else _error(row)
        entry |= {key: 1e3 * row.seconds.get(stage, 0.0) for key, stage in _STAGES.items()}
        entry |= {_MINE + key: value for key, value in figures_of(row).items()}
        cache[",".join(str(v) for v in values.values())] = entry
    return {
        "device_name": recording.device_name,
        **own,
        **{k: v for k, v in recording.extra.items() if k in _HEADER},
        "tune_params_keys": [p.name for p in knobs],
        "tune_params": {p.name: [foreign_value(v) for v in p.values] for p in knobs},
        KEY: header_of(recording),
        "cache": cache,
    }


def _error(row: Recorded) -> str:
    return _ERRORS.get(row.outcome, "RuntimeFailedConfig")


def one_family(recording: Recording, what: str) -> tuple[str, tuple[Parameter, ...]]:
    """The only family and its knobs.

    Raises:
        RecordingError: there are several.
    """
    if len(recording.parameters) != 1:
        raise RecordingError(
            f"The recording {recording.name!r} is of {', '.join(recording.parameters)}, but {what} are of one kernel: "
            f"choose one with --family."
        )
    ((family, knobs),) = recording.parameters.items()
    return family, knobs
