"""What a proposal costs: ``python benchmarks/search/proposals.py OUT.json [--budget 300]``; needs no GPU.

Searches whole spaces of the H200 with ``gp`` in the rhythm of a study. What a trial takes is made up: the estimated
time, up to a quarter more by a hash of the configuration, so that there is something to learn. Only the strategy's own
time counts. One process a space, for its peak memory (resident, all imports in it). Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import zlib
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from gemmtune.search.result_file import blank_of
from gemmtune.search.results import save
from gemmtune.search.rhythm import AHEAD, BATCH, one_thread
from gemmtune.search.strategy import Result, make_strategy
from gemmtune.space import families
from gemmtune.space.estimate import estimate
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.space import Space

SPACES = {"4096x4096x4096": "hopper", "64x7168x16384": "hopper,skinny", "1024x1024x1024": "simt,mma"}
"""The families searched, by shape: some 1e5 valid configurations, and some 1e6."""
MS_BAR, MB_BAR = 5.0, 500
PROTOCOL = (
    "gp on whole spaces of the H200 (bf16), proposals in batches of four with the results of four batches ago, one "
    "thread, made-up times; milliseconds of the strategy's own work a proposal, the making of the strategy apart; "
    "peak resident memory of the process."
)


def measure(shape: str, budget: int) -> dict[str, Any]:
    """One search: what its proposals cost."""
    m, n, k = map(int, shape.split("x"))
    problem = Gemm(m, n, k, "bf16")
    by_name = {name: families.family(name) for name in SPACES[shape].split(",")}
    space = Space(problem, gpu("h200"), list(by_name.values()))

    def made_up(index: int) -> float:
        configuration = space[index]
        noise = zlib.crc32(str(configuration).encode()) / 2**32
        return estimate(problem, configuration, by_name[configuration.family], space.gpu).us * (1 + noise / 4)

    batches: deque[list[int]] = deque()
    results: list[Result] = []
    costs: list[float] = []
    total = 0.0
    with one_thread():
        began = time.perf_counter()
        strategy = make_strategy("gp", space, 0, budget)
        made = time.perf_counter() - began
        planned = 0
        while True:
            began, before = time.perf_counter(), planned
            if results:
                strategy.observe(results)
            while planned < budget and len(batches) <= AHEAD:
                batches.append(strategy.propose(BATCH))
                planned += BATCH
            spent = 1e3 * (time.perf_counter() - began)
            total += spent
            if planned > before:
                costs.append(spent / (planned - before))
            if not batches:
                break
            results = [Result(index, "correct", made_up(index)) for index in batches.popleft()]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    low, middle, high = np.quantile(costs, (0.05, 0.5, 0.95)).round(2).tolist()
    return {
        "families": SPACES[shape], "valid": len(space), "proposals": planned, "made_s": round(made, 3),
        "ms": {"mean": round(total / planned, 2), "p5": low, "median": middle, "p95": high},
        "peak_mb": round(peak),
    }  # fmt: skip


def main() -> int:
    """Measure every space in a process of its own, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--budget", type=int, default=300)
    parser.add_argument("--one", choices=sorted(SPACES), help="measure one space, and print its figures")
    words = parser.parse_args()
    if words.one is not None:
        sys.stdout.write(json.dumps(measure(words.one, words.budget)))
        return 0
    if words.output is None:
        parser.error("an output is needed")
    found: dict[str, Any] = {}
    for shape in SPACES:
        command = [sys.executable, __file__, "--one", shape, "--budget", str(words.budget)]
        found[shape] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        sys.stdout.write(f"{shape}: {found[shape]}\n")
    passed = all(one["ms"]["mean"] <= MS_BAR and one["peak_mb"] <= MB_BAR for one in found.values())
    summary = {"spaces": found, "bars": {"ms": MS_BAR, "mb": MB_BAR}, "passed": passed}
    save(words.output, blank_of(words.output.stem, "", {}, PROTOCOL, summary))
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
