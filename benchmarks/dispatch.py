"""Leave one M out: ``python benchmarks/dispatch.py OUT.json [--db FOLDER] [--product NxK] [--trials 60] [--time 240]``.

For each product (N, K) tunes every M of the list, and then measures, as an export does, what the look-up answers at
each M when that M alone was not tuned. An answer may be slower than the baseline by 2 % and the noise of its own
measurement (its ratio's interval). Products are written one by one into the file, which keeps those of earlier runs; a
run takes up an interrupted one, whose tuning and measured points lie in FOLDER. Exit code 1 where a bar is missed.

Several GPUs share the products, each with a file of its own:

    python benchmarks/dispatch.py OUT.json --product 4096x4096 --product 14336x4096 --workers 14 &
    python benchmarks/dispatch.py B.json --device cuda:1 --product 4096x14336 --product 6144x4096 --workers 14 & wait
    python benchmarks/dispatch.py OUT.json --join B.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.db import History
from gemmtune.device import open_device
from gemmtune.device.base import Cache, Device, Regime
from gemmtune.pack.ranges import RangeMeter, beats_baseline
from gemmtune.pack.rebuild import rebuild
from gemmtune.pack.regret import HeldOut, Tuned, leave_one_out
from gemmtune.pack.schema import Point
from gemmtune.search import tune
from gemmtune.search.result_file import blank_result
from gemmtune.search.results import read_result_file, save
from gemmtune.space.gemm import Gemm
from gemmtune.space.problem import Problem, problem_from_json

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096)
PRODUCTS = ((4096, 4096), (14336, 4096), (4096, 14336), (6144, 4096))
"""(N, K): projection, up and down of an 8B model, and its fused Q, K, V."""
BAR = 0.02
PROTOCOL = (
    "Every M tuned (bf16, nt, sustained, cold cache; trials says how often), then each left out in turn: the ranges of "
    "the others are measured as an export measures them (both ends and the middle, proved and timed beside cuBLAS), "
    "and what the look-up answers at the M left out is timed anew on other inputs (a run that takes up an interrupted "
    "one keeps its points). Ratios are cuBLAS time / answer's time; regret is the answer's time over that of the best "
    "kernel tuned for the M, less 1."
)


def answer(held: HeldOut) -> dict[str, Any]:
    """One answer as the file keeps it; ``allowed`` says whether it is within the bar and its own noise."""
    axes = dict(held.problem.axes)
    noise = held.ratio_high / held.ratio - 1.0
    return {
        **axes, "how": held.how, "tuned_at": held.tuned_at, "us": held.us, "baseline_us": held.baseline_us,
        "ratio": held.ratio, "ratio_low": held.ratio_low, "ratio_high": held.ratio_high,
        "best_ratio": held.best_ratio, "regret": held.regret, "noise": noise,
        "allowed": 1.0 / held.ratio - 1.0 <= BAR + noise,
    }  # fmt: skip


def summarise(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures over all products."""
    return {
        "estimated": False,
        "answers": list(answers),
        "products": len({(a["n"], a["k"]) for a in answers}),
        "by_range": sum(a["how"] == "range" for a in answers),
        "worst_ratio": min(a["ratio"] for a in answers),
        "mean_regret": fmean(a["regret"] for a in answers),
        "worst_regret": max(a["regret"] for a in answers),
        "too_slow": sum(not a["allowed"] for a in answers),
        "bar": BAR,
    }


def earlier(path: Path, done: tuple[int, int]) -> list[dict[str, Any]]:
    """The answers of the file for other products than ``done``."""
    if not path.exists():
        return []
    answers = json.loads(path.read_text())["summary"]["answers"]
    return [a for a in answers if (a["n"], a["k"]) != done]


def join(output: Path, others: Sequence[Path]) -> dict[str, Any]:
    """Add the products of other files to ``output``, which need not exist yet: the summary of all."""
    files = [read_result_file(path) for path in (*((output,) if output.exists() else ()), *others)]
    origins = {(file.gpu, file.driver, file.protocol, file.estimated) for file in files}
    if len(origins) > 1:
        named = " and ".join(sorted({f"{file.gpu} (driver {file.driver})" for file in files}))
        raise SystemExit(f"The files are of {named}, or measured in different ways: join those of one kind alone.")
    answers = {(a["n"], a["k"], a["m"]): a for file in files for a in file.summary["answers"]}
    summary = {**summarise(list(answers.values())), "estimated": files[-1].estimated}
    save(output, replace(files[-1], summary=summary))
    return summary


class KeptMeter(RangeMeter):
    """A meter whose points outlast it: a product has many, seconds each, and a run may be interrupted.

    ``path`` gets a line of JSON for each; a line cut short is measured again. So is what another GPU or driver gave:
    ``origin`` says which this is.
    """

    def __init__(self, device: Device, path: Path, origin: str) -> None:
        super().__init__(device)
        self._path, self._origin = path, origin
        self._kept: dict[str, dict[str, Any]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                self._kept[found["key"]] = found

    def point(self, kernel: CompiledKernel, there: Problem, regime: Regime, cache: Cache, anew: bool) -> Point | None:
        """As it was measured, now or by a run before."""
        key = f"{self._origin} {kernel.cubin_sha256} {there.key} {regime} {cache}{' anew' if anew else ''}"
        if key not in self._kept:
            point = super().point(kernel, there, regime, cache, anew)
            self._kept[key] = {
                "key": key, "wrong": self.wrong.get(kernel.cubin_sha256) == there.key,
                "point": point and {**asdict(point), "axes": dict(point.axes)},
            }  # fmt: skip
            with self._path.open("a") as file:
                file.write("\n" + json.dumps(self._kept[key]))  # a line cut short ends here
        found = self._kept[key]
        if found["wrong"]:
            self.wrong.setdefault(kernel.cubin_sha256, there.key)
        return Point(**found["point"]) if found["point"] else None


def hold_out(device: Device, history: History, kept: Path) -> list[HeldOut]:
    """Each tuned size held out in turn.

    As an export with the device does it, less the ranges of the pack itself: they would cost half as much again.
    """
    kernels, group = KernelCache(), []
    for record in history.best_kernels(device.gpu.key, device.kind, "sustained", cache="cold"):
        timing = record.timing
        won = timing is not None and beats_baseline(timing.ratio, timing.ratio_low)
        kernel = rebuild(record, kernels, history.cubin(record.cubin_sha256)) if won else None
        ratio = timing.ratio if won and timing is not None and timing.ratio is not None else 1.0
        group.append(Tuned(problem_from_json(record.problem_json), kernel, ratio))
    meter = KeptMeter(device, kept, f"{device.gpu.key} {json.dumps(device.environment(), sort_keys=True)}")
    return leave_one_out(meter, group, "sustained", "cold", lambda p: print(f"{p.key}", flush=True))  # noqa: T201


def measure(
    device: Device, folder: Path, product: tuple[int, int], sizes: Sequence[int], trials: int, seconds: float,
    workers: int | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Tune one product at ``sizes`` and hold each out: the answers."""
    file = folder / f"dispatch-{product[0]}x{product[1]}.db"
    with History(file) as history:
        return _measure(device, history, file.with_suffix(".points"), product, sizes, trials, seconds, workers)


def _measure(
    device: Device, history: History, kept: Path, product: tuple[int, int], sizes: Sequence[int], trials: int,
    seconds: float, workers: int | None,
) -> list[dict[str, Any]]:  # fmt: skip
    problems = [Gemm(m, *product, dtype="bf16") for m in sizes]
    if trials:
        tune(problems, device, trials=trials, time_limit=seconds, history=history, workers=workers)
    tried: Counter[str] = Counter()
    for study in history.studies(limit=None):
        tried[study.problem_key] += study.trials
    return [{**answer(held), "trials": tried[held.problem.key]} for held in hold_out(device, history, kept)]


def main() -> None:
    """Measure, and write the file after every product."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--db", type=Path, default=None, help="folder of one history a product; by default scratch")
    parser.add_argument("--product", action="append", default=None, metavar="NxK")
    parser.add_argument("--trials", type=int, default=60, help="0: hold out what FOLDER has, by older templates too")
    parser.add_argument("--time", type=float, default=240.0, help="seconds of tuning a product")
    parser.add_argument("--workers", type=int, default=None, help="compile processes; fewer where GPUs share the CPUs")
    parser.add_argument("--join", type=Path, action="append", metavar="FILE", help="add what FILE has; measure nothing")
    options = parser.parse_args()
    if options.join:
        raise SystemExit(join(options.output, options.join)["too_slow"] > 0)
    named = [tuple(map(int, text.split("x"))) for text in options.product or ()]
    products = [(n, k) for n, k in named] or list(PRODUCTS)
    device, missed = open_device(options.device), 0
    try:
        with tempfile.TemporaryDirectory() as scratch:
            folder = options.db or Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            for n, k in products:
                found = measure(device, folder, (n, k), SIZES, options.trials, options.time, options.workers)
                summary = summarise([*earlier(options.output, (n, k)), *found]) | {"estimated": device.estimates}
                result = blank_result(options.output.stem, device, PROTOCOL, summary)
                save(options.output, replace(result, name="dispatch"))
                missed = summary["too_slow"]
                regret = f"mean regret {100 * summary['mean_regret']:.1f} %"
                print(f"{n} x {k}: {len(found)} sizes, {regret}, {missed} too slow", flush=True)  # noqa: T201
    finally:
        device.close()
    raise SystemExit(missed > 0)


if __name__ == "__main__":
    main()
