"""A/A: ``python benchmarks/noise.py OUT.json [--device cuda:0] [--pairs 220] [--trials 60]``, some two minutes.

Times one kernel against itself and counts the differences that the finals would see; then runs one study twice, in
histories of its own each, and compares the winners' ratios to the baseline. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from gemmtune.device import open_device
from gemmtune.device.base import Device
from gemmtune.search import tune
from gemmtune.search.noise import measure_noise
from gemmtune.search.result_file import blank_result
from gemmtune.search.results import save
from gemmtune.space.gemm import Gemm

RATE_BAR, AGREEMENT_BAR = 0.02, 0.01
PROTOCOL = (
    "Races of 11 copies of one kernel, each loaded and captured on its own, as finalists are timed (sustained, cold "
    "cache); a pair is a false difference where its ratio is off 1 by more than the threshold and the 95 % intervals "
    "of its copies do not meet. Then one study twice with the same seed, each in a fresh history."
)


def study(problem: Gemm, device: Device, trials: int, folder: Path) -> dict[str, Any]:
    """One run in a history of its own: its winner and its ratio, and what it took."""
    (result,) = tune(problem, device, trials=trials, history=folder / "history.db", families=["mma"])
    winner = result.best[0]
    ratio = winner.timing.ratio if winner.timing else None
    return {
        "winner": winner.configuration,
        "ratio": ratio,
        "outcomes": result.outcomes,
        "seconds": round(result.seconds, 2),
    }


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--pairs", type=int, default=220)
    parser.add_argument("--trials", type=int, default=60)
    options = parser.parse_args()
    problem = Gemm(4096, 4096, 4096, "bf16")
    device = open_device(options.device)
    try:
        began = time.perf_counter()
        noise = measure_noise(
            device, problem, options.pairs, lambda done, of: print(f"{done} of {of} pairs", flush=True)  # noqa: T201
        )  # fmt: skip
        seconds = time.perf_counter() - began
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            studies = [study(problem, device, options.trials, Path(folder)) for folder in (one, other)]
        first, second = (float(run["ratio"] or 0.0) for run in studies)
        apart = abs(first - second) / max(first, second, 1e-9)
        summary = {
            "estimated": False,
            "regime": "sustained",
            "cache": "cold",
            **noise.to_json(),
            "seconds": round(seconds, 1),
            "studies": studies,
            "winners_apart": apart,
            "bars": {"rate": RATE_BAR, "winners_apart": AGREEMENT_BAR},
        }
        save(options.output, blank_result(options.output.stem, device, PROTOCOL, summary))
    finally:
        device.close()
    print(f"false differences {noise.false_differences} of {noise.pairs}, 95 % within {noise.spread:.4f}; ", end="")  # noqa: T201
    print(f"winners {first:.4f} and {second:.4f}, {100 * apart:.2f} % apart")  # noqa: T201
    raise SystemExit(noise.rate > RATE_BAR or apart > AGREEMENT_BAR)


if __name__ == "__main__":
    main()
