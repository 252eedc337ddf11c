"""Where the host time of ``pack.matmul`` goes: ``python benchmarks/host_time.py PACK OUT.json`` on a GPU with torch.

Profiles one call of a kernel that the pack has for a small problem (so that the GPU keeps up with the host), stage by
stage, on torch tensors and CuPy arrays, beside ``torch.mm`` and ``cupy.matmul`` of the same arrays, three times in
turn. The file's row is the problem, timed as ``gemmtune bench`` does; its ``summary`` has the medians of the three
profiles, each of which takes the quickest batch of calls (see :mod:`gemmtune.pack.profile`).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from statistics import median
from typing import Any

import gemmtune
from gemmtune.pack.profile import BATCH, BATCHES, profile
from gemmtune.search.benchmark import benchmark
from gemmtune.search.result_file import write_result_file
from gemmtune.search.results import save
from gemmtune.space.gemm import Gemm

PROBLEM = Gemm(1000, 1000, 1000, dtype="fp32")
REPEATS = 3


def main() -> None:
    """Time the problem, profile the calls, and write both into one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack")
    parser.add_argument("output")
    parser.add_argument("--db", default=None)
    options = parser.parse_args()
    result = write_result_file(
        options.output, benchmark([PROBLEM], "cuda:0", options.db, options.pack, candidate=True), device="cuda:0"
    )
    pack = gemmtune.load_pack(options.pack)
    profiles: dict[str, list[dict[str, float]]] = {"torch": [], "cupy": []}
    for _ in range(REPEATS):
        profiles["torch"].append(profile_torch(pack))
        profiles["cupy"].append(profile_cupy(pack))
    stages = {
        framework: {name: round(median(p[name] for p in found), 2) for name in found[0]}
        for framework, found in profiles.items()
    }
    summary = {
        **result.summary,
        "host_us_by_stage": stages,
        "host_protocol": f"Quickest of {BATCHES} batches of {BATCH} calls, for 'median' their median; then the median "
        f"of {REPEATS} such profiles.",
    }
    save(options.output, replace(result, summary=summary))


def profile_torch(pack: Any) -> dict[str, float]:
    """Host us of a call on torch tensors, by stage, and of torch.mm."""
    import torch

    a, b = (torch.randn(PROBLEM.m, PROBLEM.k, device="cuda") for _ in "ab")
    own = profile({}, lambda: torch.mm(a, b.T), torch.cuda.synchronize)
    return {**pack.profile_call(a, b.T), "torch.mm": own["total"], "torch.mm median": own["median"]}


def profile_cupy(pack: Any) -> dict[str, float]:
    """The same on CuPy arrays, and of cupy.matmul."""
    import cupy

    a, b = (cupy.random.standard_normal((PROBLEM.m, PROBLEM.k), dtype=cupy.float32) for _ in "ab")
    own = profile({}, lambda: cupy.matmul(a, b.T), cupy.cuda.get_current_stream().synchronize)
    return {**pack.profile_call(a, b.T), "cupy.matmul": own["total"], "cupy.matmul median": own["median"]}


if __name__ == "__main__":
    main()
