"""The result file of replays: for each recorded space, what each strategy reached."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gemmtune.search.result_file import source_commit
from gemmtune.search.results import ResultFile, result_file_there, save
from gemmtune.space.errors import ProblemError
from gemmtune.space.recorded import RecordedSpace

PROTOCOL = (
    "Each strategy searches a recorded space with consecutive seeds; after each evaluation the fraction of the optimum "
    "is the recorded optimum over the best found (0 before the first correct one). Ours propose batches of four with "
    "the results of four batches ago, as a study does; peers see each result at once. An evaluation is a configuration "
    "tried, whatever became of it. Means over the seeds with their standard error, the worst seed, and the median "
    "evaluation that reaches a fraction (null: at least half never do)."
)


def add_replays(path: str | Path, space: RecordedSpace, strategies: Mapping[str, Mapping[str, Any]]) -> ResultFile:
    """Write what ``strategies`` reached on ``space`` into a result file; what it has of others stays.

    Args:
        path: of the file.
        space: what was searched.
        strategies: by name, what :meth:`gemmtune.search.replay.Replayed.to_json` gives.

    Raises:
        ProblemError: the file is there but is no result file of replays, or cannot be written.
    """
    target = Path(path)
    earlier = earlier_replays(target)
    recording = space.recording
    kept = earlier.get(recording.name, {}).get("strategies", {})
    earlier[recording.name] = space_data(space, {**kept, **strategies})
    gpus = dict.fromkeys(str(one["gpu"]) for one in earlier.values())
    result = ResultFile(
        name=target.stem,
        gpu=", ".join(gpus),
        driver="",
        cuda="",
        versions=_versions(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=source_commit(),
        protocol=PROTOCOL,
        ceilings={},
        rows=(),
        summary={"spaces": earlier},
    )
    save(target, result)
    return result


def earlier_replays(path: str | Path) -> dict[str, Any]:
    """What a file has of spaces so far; nothing where it does not exist.

    Raises:
        ProblemError: it is there, but is no result file of replays.
    """
    found = result_file_there(path)
    if found is None:
        return {}
    spaces = found.summary.get("spaces")
    if not isinstance(spaces, dict):
        raise ProblemError(
            f"The result file {str(path)!r} ({found.name}) is not of replays, which would take its place: write to "
            f"another file."
        )
    return dict(spaces)


def space_data(space: RecordedSpace, strategies: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What the file says of one space: what it is, and what each strategy reached on it."""
    recording = space.recording
    return {
        "gpu": recording.device_name or space.gpu.name,
        "source": recording.source,
        "configurations": len(space),
        "raw": space.raw_size,
        "optimum": recording.optimum,
        "objective": "time over the baseline's" if recording.rated else "us",
        "strategies": dict(sorted(strategies.items())),
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("numpy", "optuna", "kernel_tuner"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
