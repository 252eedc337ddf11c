"""Short studies against long ones: ``python benchmarks/search/live.py PACK OUT.json``, some 15 minutes on one GPU.

Tunes every shape of the suite (bf16, nt) with 60 trials in a history that starts empty, and times the kernel that each
study ends with beside the kernel of that shape in PACK, which longer studies found. The file is written after every
shape; the same command goes on where an earlier run ended (with ``--db FILE`` even within a study), and does once more
what could not be compared. ``--part 0/2`` and ``--part 1/2``, each with a file of its own, share the shapes between two
GPUs; then ``live.py OUT.json --join A.json B.json`` puts the parts together. Compiled kernels are kept in a scratch
folder, unless $GEMMTUNE_CACHE names one. Exit code 1 where the bar is missed, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.codegen.nvrtc import compile_kernel
from gemmtune.codegen.render import render
from gemmtune.db import History
from gemmtune.device import open_device
from gemmtune.device.base import Device, Job, Outcome
from gemmtune.pack.format import PackData, read_pack
from gemmtune.pack.schema import BASELINE
from gemmtune.search.events import Silent
from gemmtune.search.known import KnownKernels
from gemmtune.search.noise import ATTEMPTS, RACE_LIMIT
from gemmtune.search.result_file import blank_result
from gemmtune.search.results import read_result_file, save
from gemmtune.search.standing import geometric_mean
from gemmtune.search.study import StudyResult, tune
from gemmtune.search.suite import read_suite
from gemmtune.search.trial import DISTURBED
from gemmtune.space import errors
from gemmtune.space.configuration import Configuration
from gemmtune.space.gemm import Gemm
from gemmtune.space.problem import Problem

SHAPES = Path(__file__).resolve().parents[1] / "shapes.toml"
BAR = 1.015
WORST = 5
INPUTS = 1_000_003
"""Seed of the inputs that both kernels are timed on; no trial has it."""
SAME = ("timed_on", "estimated", "trials_a_shape", "families", "pack_sha256")
"""What rows must share to stand in one file."""
PROTOCOL = (
    "One study a shape (bf16, nt, sustained, cold cache) of at most trials_a_shape trials, in a history that began "
    "empty, in which later studies borrow from earlier ones (borrowed). Then its winner and the pack's own kernel of "
    "that shape, also where the pack dispatches to the baseline (serves: false), are proved and timed as finalists "
    "are, interleaved with each other and the baseline, on the same inputs. over_pack is the winner's time over that "
    "of the pack's kernel (above 1 is slower); over_pack_low and over_pack_high are from the ends of both intervals. "
    "Seconds are wall time of tuning, finals included, the comparison not; tuning_seconds is their sum over shapes, "
    "and so over GPUs where parts ran on several."
)
FAILURES = (errors.CompileError, errors.ConfigurationError, errors.LaunchError, errors.UnknownNameError)
"""What may keep one shape from being compared; a broken machine or file ends the run."""
Done = Callable[[Problem, dict[str, Any]], None]


class Watch(Silent):
    """Compares as soon as a study is finished, so that compilers and worker live on for the next one."""

    def __init__(self, device: Device, history: History, pack: Path, data: PackData, done: Done) -> None:
        tables = [t for t in data.tables if (t.device, t.regime, t.cache) == (device.gpu.key, "sustained", "cold")]
        self.served = {r.problem().key: r.kernel != BASELINE for t in tables for r in t.rows if r.exact}
        self._kernels = KnownKernels(device, history, pack, "sustained", "cold", candidate=True)
        self._device, self._history, self._done = device, history, done
        self._borrowed: list[str] = []

    def borrowed(self, sources: Sequence[str]) -> None:
        self._borrowed = list(sources)

    def study_finished(self, result: StudyResult) -> None:
        if result.interrupted:
            return
        trials = self._history.trials(study_id=result.study_id, limit=None)
        earlier = sorted(trials, key=lambda trial: trial.finished or 0.0)[: result.resumed]
        row = {
            "trials": result.trials, "outcomes": result.outcomes, "borrowed": self._borrowed,
            "seconds": result.seconds + sum(trial.seconds.get("wall", 0.0) for trial in earlier),
        }  # fmt: skip
        self._borrowed = []
        try:
            row |= self._compared(result)
        except FAILURES as error:  # is a result; the others go on
            row["why"] = str(error)
        self._done(result.problem, row)

    def _compared(self, result: StudyResult) -> dict[str, Any]:
        """The figures of the comparison.

        Raises:
            LaunchError: one of the kernels fails.
            UnknownNameError: there are no two.
            CompileError, ConfigurationError: the winner cannot be made again.
        """
        problem = result.problem
        if not result.best:
            raise errors.UnknownNameError(
                f"The study of {problem.key} found no right kernel in {result.trials} trials."
            )
        if problem.key not in self.served:  # what serves it from another size is no result of studying this one
            raise errors.UnknownNameError(f"The pack has no row for {problem.key} alone: tune it and export anew.")
        source = render(problem, Configuration.parse(result.best[0].configuration))
        ours = compile_kernel(source, self._device.gpu.arch, KernelCache())
        theirs = self._kernels.best(problem).kernel
        a, b = race(self._device, problem, (ours, theirs))
        return {
            **a, "pack": {**b, "serves": self.served[problem.key]}, "over_pack": a["us"] / b["us"],
            "over_pack_low": a["us_low"] / b["us_high"], "over_pack_high": a["us_high"] / b["us_low"],
        }  # fmt: skip


def race(device: Device, problem: Problem, kernels: Sequence[CompiledKernel]) -> list[dict[str, Any]]:
    """Each of ``kernels`` with its time, as finalists are timed; once more where the machine disturbed them.

    Raises:
        LaunchError: one of them has no time.
    """
    jobs = [Job(problem, kernel, INPUTS, effort="final", thorough=True) for kernel in kernels]
    for _ in range(ATTEMPTS):
        reports = device.compare(jobs, RACE_LIMIT)
        if not any(report.outcome in DISTURBED for report in reports):
            break
    found = []
    for kernel, report in zip(kernels, reports, strict=True):
        time, config = report.measurement, str(kernel.configuration)
        if report.outcome != Outcome.CORRECT or time is None:
            why = report.detail or "no reason given"
            raise errors.LaunchError(
                f"The kernel {config} of {problem.key} ended as {report.outcome} beside the other: {why}"
            )
        times = {name: getattr(time, name) for name in ("us", "us_low", "us_high", "baseline_us")}
        found.append({"config": config, **times})
    return found


def summarise(rows: Mapping[str, dict[str, Any]], run: Mapping[str, Any]) -> dict[str, Any]:
    """The figures over ``rows`` by problem, all of one ``run`` (:data:`SAME`, and the pack's name)."""
    compared = sorted((row["over_pack"], key) for key, row in rows.items() if "over_pack" in row)
    groups: dict[str, list[float]] = {}
    for ratio, key in compared:
        groups.setdefault(rows[key]["group"], []).append(ratio)
    seconds = sum(row["seconds"] for row in rows.values())
    return {
        **run,
        "shapes": len(rows),
        "compared": len(compared),
        "over_pack": geometric_mean(ratio for ratio, _ in compared) if compared else None,
        "bar": BAR,
        "by_group": {group: geometric_mean(ratios) for group, ratios in groups.items()},
        "worst": {key: ratio for ratio, key in compared[: -WORST - 1 : -1]},
        "trials": sum(row["trials"] for row in rows.values()),
        "tuning_seconds": seconds,
        "tuning_seconds_a_shape": seconds / max(1, len(rows)),
        "studies": list(rows.values()),
    }


def rows_of(path: Path, run: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of a file by problem.

    Raises:
        ProblemError: it cannot be read, or is of another ``run``, whose rows do not belong beside these.
    """
    found = read_result_file(path).summary
    for name in SAME:
        if name not in found or found[name] != run[name]:
            raise errors.ProblemError(
                f"The result file {str(path)!r} has {name} {found.get(name)!r}, but this run has {run[name]!r}: write "
                f"to another file, and join parts of one run alone."
            )
    return {row["problem"]: row for row in found["studies"]}


def join(output: Path, parts: Sequence[Path]) -> dict[str, Any]:
    """Write the rows of all ``parts``, of two of one problem the latter: the summary; raises what rows_of does."""
    first = read_result_file(parts[0])
    rows: dict[str, dict[str, Any]] = {}
    run = {name: first.summary.get(name) for name in (*SAME, "pack")}
    for part in parts:
        rows |= rows_of(part, run)
    summary = summarise(rows, run)
    save(output, replace(first, name="live", summary=summary))
    return summary


def measure(options: argparse.Namespace, device: Device, history: History) -> dict[str, Any]:
    """Tune and compare what the file lacks, and write it after every shape: the summary.

    Raises:
        ProblemError: the file or the history is of another run, or the pack has none of the shapes.
    """
    suite, data, (part, parts) = read_suite(options.shapes, options.groups), read_pack(options.pack), options.part
    problems = {p.key: p for p in [Gemm(*shape, dtype="bf16") for shape in suite.shapes][part::parts]}
    own = {Gemm(*shape, dtype="bf16").key for shape in read_suite(options.shapes).shapes}
    for study in history.studies(limit=None):
        if study.problem_key not in own or study.trials > options.trials:
            raise errors.ProblemError(
                f"The history {history.location} has {study.trials} trials of {study.problem_key}, from which a run of "
                f"{options.trials} trials of each of its own shapes must not borrow: name a new file."
            )
    run = {
        "timed_on": f"{device.gpu.name}, driver {device.environment().get('driver', 'none')}",
        "estimated": device.estimates, "trials_a_shape": options.trials, "families": options.families,
        "pack": options.pack.name, "pack_sha256": data.manifest_sha256,
    }  # fmt: skip
    rows = rows_of(options.output, run) if options.output.exists() else {}

    def done(problem: Problem, row: dict[str, Any]) -> None:
        found = {"problem": problem.key, "group": suite.group_of(problems[problem.key]), **problem.axes}
        rows[problem.key] = {**found, **row}
        save(options.output, blank_result("live", device, PROTOCOL, summarise(rows, run)))
        how = f"{row['over_pack']:.4f} of the pack's time" if "over_pack" in row else row["why"]
        print(f"{problem.key}: {row['trials']} trials in {row['seconds']:.1f} s, {how}", flush=True)  # noqa: T201

    watch = Watch(device, history, options.pack, data, done)
    if not watch.served.keys() & problems:  # found out now, not after hours of tuning
        raise errors.ProblemError(
            f"The pack {options.pack.name} has no row (sustained, cold) of any of these shapes on {device.gpu.name}: "
            f"name one that was tuned for them."
        )
    left = [problem for key, problem in problems.items() if "over_pack" not in rows.get(key, {})]
    if left:
        limits = {"trials": options.trials, "families": options.families}
        if tune(left, device, **limits, history=history, observer=watch)[-1].interrupted:
            raise KeyboardInterrupt
    return summarise(rows, run)


def part_of(text: str) -> tuple[int, int]:
    """``"0/2"`` as (0, 2)."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"the part {text!r} is malformed: write 0/2 or 1/2 for one of two")
    return int(index), int(count)


def main() -> int:
    """Measure or join; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path, nargs="?", help="kernels of longer studies, NAME.kpack")
    parser.add_argument("output", type=Path)
    parser.add_argument("--shapes", type=Path, default=SHAPES, help="a suite of shapes")
    parser.add_argument("--groups", type=lambda text: text.split(","), default=[], metavar="A,B", help="of the suite")
    parser.add_argument("--part", type=part_of, default=(0, 1), metavar="I/N", help="every Nth shape from the Ith on")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--families", type=lambda text: text.split(","), metavar="A,B", help="by default as tune does")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--db", type=Path, help="the history, kept between runs; by default scratch")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE", help="only put these files together")
    options = parser.parse_args()
    if (options.pack is None) == (options.join is None):
        parser.error("name a pack to compare with, or files to --join")
    try:
        if options.join:
            summary = join(options.output, options.join)
        else:
            with tempfile.TemporaryDirectory() as scratch:
                os.environ.setdefault("GEMMTUNE_CACHE", str(Path(scratch) / "cache"))
                history = History(options.db or Path(scratch) / "history.db")
                with history, closing(open_device(options.device, running=True)) as device:
                    summary = measure(options, device, history)
    except errors.GemmtuneError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130
    print(*(f"{name}: {value}" for name, value in summary.items() if name != "studies"), sep="\n")  # noqa: T201
    return 0 if summary["over_pack"] is not None and summary["over_pack"] <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
