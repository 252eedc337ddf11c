"""Faulty kernels among right ones: ``python benchmarks/faults.py OUT.json [--size 4096 --regime burst]``.

With these options, under which times repeat best, eight minutes on a GPU, else two.

Runs a fixed list of configurations twice, through the product's own course of trials, each in a history of its own:
once without its faulty ones (40 % of them, of the family in ``tests/faults``), once whole. Then the finalists of the
whole list meet once more in a fresh worker, and the winner runs alone with the baseline. Counted are faulty kernels
that ended otherwise than they must, by how much the right ones' ratios to the baseline moved between the two runs
(median and 90th percentile of |shift|), by how much the winner's did among the finalists, and what dead workers left
on the GPU. The figures go into the summary of a result file; the exit code is 1 where a bar is missed.
``--device emulator:h200 --size 64 --count 40`` rehearses it without a GPU.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "faults"))

from fault_family import FAULTS, fault_of, registered, several
from fault_study import Finished, left_behind, mixed, near, try_list, zombies

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.pool import CompilePool
from gemmtune.db import History, TrialRecord
from gemmtune.device import open_device
from gemmtune.device.base import Device, Job, Outcome
from gemmtune.search.events import Silent
from gemmtune.search.finals import finalists, measure_finalists
from gemmtune.search.result_file import blank_result
from gemmtune.search.results import save
from gemmtune.search.start import known_points
from gemmtune.search.trial import Timing, TrialRunner
from gemmtune.space import families
from gemmtune.space.configuration import Configuration
from gemmtune.space.gemm import Gemm
from gemmtune.space.space import Space

FAULTY: Mapping[str, int] = {
    "out_of_bounds": 16, "writes_input": 8, "illegal_address": 3, "misaligned": 3, "trap": 3, "spin": 2,
    "spin_silently": 1, "deadlock": 2, "spill": 12, "shared_hog": 6, "memory_hog": 3, "refused": 16, "slow_compile": 2,
    "nan": 16, "corner": 15, "nondeterministic": 12,
}  # fmt: skip
"""How many of each among 300: few of those that cost a worker, or a time limit."""
COUNT = 300
SIZE = 1000
"""Below the power cap of an H200: at the cap its clock alone moves ratios by more than faults may."""
SEED = 8
MEDIAN_BAR, P90_BAR, WINNER_BAR = 0.007, 0.03, 0.01
MEMORY_BAR = 8 * 2**20
SETTLE_SECONDS = 5.0
FINAL_SECONDS = 120.0
PROTOCOL = (
    "A fixed list of configurations, 40 % of them faulty, run whole and without the faulty ones, each timed in full, "
    "however slow; ratios are those of each configuration's own trial, and of the finals for the winner, which are "
    "held once more in a fresh worker."
)


def fixed_list(space: Space, count: int) -> tuple[list[Configuration], list[Configuration]]:
    """The list of ``count`` configurations, and the right ones of it alone, in the same order."""
    faulty = [c for fault, n in FAULTY.items() for c in several(fault, max(1, round(n * count / COUNT)))]
    points = [space[i] for i in known_points(space, 8)] or [space[0]]
    right = near(space, points, count - len(faulty), SEED)
    if len(right) + len(faulty) < count:
        raise SystemExit(f"{space.problem.key} has {len(right)} configurations, {count - len(faulty)} are needed.")
    return mixed(right, faulty, SEED)


def shifts(before: Iterable[TrialRecord], after: Iterable[TrialRecord]) -> dict[str, float]:
    """By how much the ratio of each configuration that is correct in both runs moved, as a fraction of the first.

    Estimated times stand in where there is no ratio. The times are those of the configurations' own trials.
    """
    firsts = {r.configuration: _score(r) for r in before if r.outcome == Outcome.CORRECT}
    return {
        r.configuration: _score(r) / firsts[r.configuration] - 1
        for r in after
        if r.outcome == Outcome.CORRECT and r.configuration in firsts
    }


def _score(record: TrialRecord) -> float:
    score = record.us if record.ratio is None else record.ratio
    assert score is not None  # noqa: S101 - the correct ones are timed
    return score


def mistaken(records: Iterable[TrialRecord], kind: str) -> list[str]:
    """The faulty configurations that did not end as they must on a device of ``kind``, with what they ended as."""
    out = []
    for record in records:
        fault = FAULTS.get(fault_of(record.configuration) or "")
        if fault is None:
            continue
        if record.outcome != fault.outcome(kind) or not re.search(fault.words, record.detail):
            out.append(f"{record.configuration}: {record.outcome}: {record.detail}"[:400])
    return out


def harmed(before: Iterable[TrialRecord], after: Iterable[TrialRecord]) -> list[str]:
    """Kernels that ran without fail before and failed after, with what they ended as then."""
    fine = (Outcome.CORRECT, Outcome.ABANDONED, Outcome.UNSTABLE)
    sound = {r.configuration for r in before if r.outcome in fine}
    failed = (r for r in after if r.configuration in sound and r.outcome not in fine)
    return [f"{r.configuration}: {r.outcome}: {r.detail}"[:400] for r in failed]


class Watch(Silent):
    """Looks at the GPU after each trial: memory that a dead worker left, in bytes beyond what was used before.

    Made before the first worker is up: what it sees then is what must be there again.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._worker: Any = device._worker  # type: ignore[attr-defined]  # the worker is the device's own matter, else
        self._monitor: Any = None
        if device.kind == "cuda":
            from gemmtune.device.cuda.info import monitor

            self._monitor = monitor(int(device.name.partition(":")[2]))
        self._listed_before, self._used_before = self._listed(), self._used()
        self.begin()

    def begin(self) -> None:
        """Count from here."""
        self._started_before = self._started()
        self._most_left = self._left_at_end = self._deaths = self._workers = 0
        self._strangers: list[int] = []

    def trial_finished(
        self, record: TrialRecord, best: TrialRecord | None, done: int, budget: int, counts: Mapping[str, int]
    ) -> None:
        if self._worker.pid is None and record.outcome not in (Outcome.COMPILE, Outcome.PRUNED):
            self._deaths += 1
            self._most_left = max(self._most_left, self._left())

    def close(self) -> None:
        """End the worker, and look once more."""
        self._workers = self._started() - self._started_before
        self._device.close()
        self._left_at_end = self._left()
        self._strangers = sorted(self._listed() - self._listed_before)

    def figures(self) -> dict[str, Any]:
        """What was seen; bytes are meaningless where ``memory_known`` is false."""
        return {
            "workers_started": self._workers,
            "worker_deaths": self._deaths,
            "memory_known": self._monitor is not None and self._monitor.memory_used() is not None,
            "memory_left_at_a_death_bytes": self._most_left,
            "memory_left_at_the_end_bytes": self._left_at_end,
            "processes_left_on_gpu": self._strangers,
        }

    def _left(self) -> int:
        """Bytes still in use beyond those of before, once the driver has had its time to clear away."""
        end = time.monotonic() + SETTLE_SECONDS
        while (more := max(0, self._used() - self._used_before)) > MEMORY_BAR and time.monotonic() < end:
            time.sleep(0.02)
        return more

    def _started(self) -> int:
        return int(self._worker.started)

    def _used(self) -> int:
        return int(self._monitor.memory_used() or 0) if self._monitor else 0

    def _listed(self) -> frozenset[int]:
        return frozenset(self._monitor.processes()) if self._monitor else frozenset()


def once_more(winner: TrialRecord, finished: Finished, runner: TrialRunner) -> tuple[float, float]:
    """The winner's ratio (on the emulator its time) among the same finalists, and alone with the baseline."""
    met = measure_finalists(runner, finalists(finished.course.records))
    among = next((time for record, time in met if record.id == winner.id), None)
    prepared = runner.prepare(Configuration.parse(winner.configuration))
    assert prepared.compiling is not None  # noqa: S101 - it was compiled before
    job = Job(
        runner.problem, prepared.compiling.result(), seed=winner.number, regime=runner.timing.regime, effort="final"
    )
    (report,) = runner.device.compare([job], FINAL_SECONDS)
    if among is None or report.outcome != Outcome.CORRECT or report.measurement is None:
        raise SystemExit(f"The winner {winner.configuration} ended as {report.outcome} when run again: {report.detail}")
    return among.ratio or among.us, report.measurement.ratio or report.measurement.us


def percentile(values: Sequence[float], percent: float) -> float:
    """A percentile of the sizes of ``values``, linearly between neighbours."""
    return float(np.percentile(np.abs(values), percent)) if values else float("inf")


def measure(problem: Gemm, options: argparse.Namespace) -> tuple[dict[str, Any], Device]:
    """The runs and the winner once more, as the summary of a result file; the device is closed."""
    marker = {"GEMMTUNE_FAULTS": uuid.uuid4().hex}
    os.environ |= marker
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gemmtune-faults-")))
        keep = Path(options.histories or folder)
        keep.mkdir(parents=True, exist_ok=True)
        faulty = stack.enter_context(registered())
        device = open_device(options.device)
        stack.callback(device.close)
        kinds = [families.family("mma"), faulty]
        whole, clean = fixed_list(Space(problem, device.gpu, kinds[:1]), options.count)
        kernels = KernelCache(folder / "kernels")
        lists = {"clean": clean, "whole": whole} | ({"control": clean} if options.control else {})
        watch = Watch(device)
        runs: dict[str, Finished] = {}
        seconds: dict[str, float] = {}
        seen: dict[str, dict[str, Any]] = {}
        for run, listed in lists.items():
            started = time.monotonic()
            watch.begin()
            history = stack.enter_context(History(keep / f"{run}.db"))
            with CompilePool(options.workers, kernels, timeout=options.compile_limit) as pool:
                runs[run] = try_list(listed, problem, device, kinds, history, pool, kernels, watch, options.regime)
            seconds[run] = round(time.monotonic() - started, 1)
            watch.close()  # each run begins with a worker of its own
            seen[run] = watch.figures()
            print(f"{run}: {dict(runs[run].course.counts)} in {seconds[run]} s", flush=True)  # noqa: T201
        with CompilePool(options.workers, kernels) as pool:
            runner = TrialRunner(problem, device, kinds, pool, Timing(options.regime, thorough=True), kernels)
            winner = runs["whole"].ranked[0]
            among, alone = once_more(winner, runs["whole"], runner)
        device.close()
        summary = {
            "estimated": device.estimates,
            "problem": problem.key,
            "regime": options.regime,
            "configurations": len(whole),
            "recorded": len({r.configuration for r in runs["whole"].records}),
            "faulty": len(whole) - len(clean),
            "faulty_by_kind": dict(Counter(fault for c in whole if (fault := fault_of(str(c))))),
            "outcomes": {run: dict(finished.course.counts) for run, finished in runs.items()},
            "mistaken": mistaken(runs["whole"].records, device.kind),
            "harmed": harmed(runs["clean"].records, runs["whole"].records),
            "infrastructure": [r.detail for r in runs["whole"].records if r.outcome == Outcome.INFRASTRUCTURE],
            **shift_figures("shift", runs["clean"], runs["whole"]),
            **(shift_figures("control_shift", runs["clean"], runs["control"]) if options.control else {}),
            "winner": winner.configuration,
            "winner_of_clean": runs["clean"].ranked[0].configuration,
            "winner_ratio": _final(winner),
            "winner_ratio_again": among,
            "winner_ratio_alone": alone,
            "winner_ratio_of_clean": _final(runs["clean"].ranked[0]),
            "winner_shift": abs(among / _final(winner) - 1),
            **seen["whole"],
            "seconds": {**seconds, "all": round(time.monotonic() - began, 1)},
        }
    return {**summary, "processes_left": len(list(left_behind(marker))), "zombies": len(zombies())}, device


def shift_figures(name: str, before: Finished, after: Finished) -> dict[str, float]:
    """How many configurations pair, by how much they moved, and how many are right in one run alone."""
    moved = list(shifts(before.records, after.records).values())
    first = {r.configuration: r.outcome for r in before.records}
    changed = [r for r in after.records if r.configuration in first and r.outcome != first[r.configuration]]
    return {
        f"{name}_pairs": len(moved),
        f"{name}_median": percentile(moved, 50),
        f"{name}_p90": percentile(moved, 90),
        f"{name}_signed_median": float(np.median(moved)) if moved else 0.0,
        f"{name}_outcomes_changed": len(changed),
    }


def _final(winner: TrialRecord) -> float:
    time = winner.timing
    assert time is not None  # noqa: S101 - a winner is timed
    return time.us if time.ratio is None else time.ratio


def missed(summary: Mapping[str, Any]) -> list[str]:
    """The bars that these figures miss, in words."""
    bars = {
        "trials are missing": summary["recorded"] == summary["configurations"],
        "faulty kernels ended otherwise than they must": not summary["mistaken"],
        "right kernels failed beside faulty ones": not summary["harmed"],
        "trials failed for reasons of the machine": not summary["infrastructure"],
        f"the median shift is above {MEDIAN_BAR:.1%}": summary["shift_median"] <= MEDIAN_BAR,
        f"the 90th percentile of the shifts is above {P90_BAR:.0%}": summary["shift_p90"] <= P90_BAR,
        f"the winner moved by more than {WINNER_BAR:.0%}": summary["winner_shift"] <= WINNER_BAR,
        "a dead worker left GPU memory in use": summary["memory_left_at_a_death_bytes"] <= MEMORY_BAR,
        "NVML does not say how much GPU memory is in use": summary["memory_known"] or summary["estimated"],
        "GPU memory is not back": summary["memory_left_at_the_end_bytes"] <= MEMORY_BAR,
        "NVML lists processes that are dead": not summary["processes_left_on_gpu"],
        "processes are left": summary["processes_left"] == summary["zombies"] == 0,
    }
    return [words for words, held in bars.items() if not held]


def main() -> None:
    """Both runs, the file, and exit code 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("output")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--size", type=int, default=SIZE, help="M = N = K, bf16")
    parser.add_argument("--regime", choices=("sustained", "burst"), default="sustained")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--compile-limit", type=float, default=10.0, help="seconds one compile may take")
    parser.add_argument("--workers", type=int, default=None, help="compile processes")
    parser.add_argument(
        "--control", action="store_true", help="run the right ones a second time alone, to compare with"
    )
    parser.add_argument("--histories", default=None, help="a folder to keep the histories in")
    options = parser.parse_args()
    problem = Gemm(options.size, options.size, options.size, dtype="bf16")
    summary, device = measure(problem, options)
    result = blank_result("faults", device, PROTOCOL, summary)
    save(options.output, result)
    failures = missed(summary)
    print(*(f"{name}: {value}" for name, value in summary.items()), *failures, sep="\n", flush=True)  # noqa: T201
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
