"""Throughput: ``python benchmarks/throughput.py OUT.json [--device cuda:0] [--trials 300]``.

Runs one study of ``mma`` kernels with an empty cache of compiled kernels and an empty history, and tells what a trial
took, in all and by stage, and how much of it the database. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

from gemmtune.db import History
from gemmtune.device import open_device
from gemmtune.device.base import Device
from gemmtune.search import tune
from gemmtune.search.events import Silent
from gemmtune.search.result_file import blank_result
from gemmtune.search.results import save
from gemmtune.space.gemm import Gemm
from gemmtune.space.problem import Problem

TRIAL_BAR, DATABASE_BAR = 0.10, 0.002
"""Seconds a trial."""
PROTOCOL = (
    "One study with an empty kernel cache and history, from the call to the last trial, the start of the worker and of "
    "the compilers included; the finals are told apart. Stages are means over the trials; compiling overlaps with the "
    "device, which waits for it (wait) where it is behind. Database: claiming and recording, finals included."
)


class Clock(Silent):
    """When the trials were through."""

    def __init__(self) -> None:
        self.finals: float | None = None

    def finals_started(self, problem: Problem, candidates: int) -> None:
        """The last trial is recorded."""
        self.finals = time.perf_counter()


def measure(problem: Gemm, device: Device, trials: int, folder: Path) -> dict[str, object]:
    """Run the study in ``folder``; the summary."""
    os.environ["GEMMTUNE_CACHE"] = str(folder / "cache")
    clock = Clock()
    with History(folder / "history.db") as history:
        began = time.perf_counter()
        (result,) = tune(problem, device, trials=trials, history=history, families=["mma"], observer=clock)
        end = time.perf_counter()
        records = history.trials(study_id=result.study_id, limit=None)
    stages: Counter[str] = Counter()
    for record in records:
        stages.update({stage: seconds for stage, seconds in record.seconds.items() if stage != "wall"})
    through = end if clock.finals is None else clock.finals
    return {
        "estimated": result.estimated,
        "problem": problem.key,
        "trials": result.trials,
        "outcomes": result.outcomes,
        "tried_twice": sum("Tried twice" in record.detail for record in records),
        "seconds": round(through - began, 2),
        "finals_seconds": round(end - through, 2),
        "seconds_a_trial": (through - began) / result.trials,
        "seconds_a_trial_with_finals": (end - began) / result.trials,
        "database_seconds_a_trial": result.database_seconds / result.trials,
        "stage_seconds_a_trial": {stage: seconds / len(records) for stage, seconds in sorted(stages.items())},
        "cpus": os.cpu_count(),
        "bars": {"seconds_a_trial": TRIAL_BAR, "database_seconds_a_trial": DATABASE_BAR},
    }


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--size", type=int, default=4096)
    options = parser.parse_args()
    problem = Gemm(options.size, options.size, options.size, "bf16")
    device = open_device(options.device)
    try:
        with tempfile.TemporaryDirectory() as folder:
            summary = measure(problem, device, options.trials, Path(folder))
        save(options.output, blank_result(options.output.stem, device, PROTOCOL, summary))
    finally:
        device.close()
    print(*(f"{name}: {value}" for name, value in summary.items()), sep="\n")  # noqa: T201
    bars = {"seconds_a_trial": TRIAL_BAR, "database_seconds_a_trial": DATABASE_BAR}
    raise SystemExit(any(float(str(summary[name])) > bar for name, bar in bars.items()))


if __name__ == "__main__":
    main()
