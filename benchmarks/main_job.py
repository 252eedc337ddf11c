"""The main job's result file: ``python benchmarks/main_job.py PACK OUT.json [--db HISTORY]`` on a GPU with torch.

Times the kernels of an exported pack, all in this one run, beside cuBLAS and the naive kernel; then loads the pack, as
a program would, calls it on torch tensors and CuPy arrays of every problem and compares the results with float64. The
calls stand in the file's ``summary``.
"""

from __future__ import annotations

import argparse
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import gemmtune
from gemmtune.device.verify import Limits, compare
from gemmtune.search.benchmark import benchmark
from gemmtune.search.result_file import write_result_file
from gemmtune.search.results import save
from gemmtune.space.errors import GemmtuneError
from gemmtune.space.gemm import Gemm
from gemmtune.space.problem import Array

SHAPES = Path(__file__).with_name("main-job.toml")
DTYPES = ("fp32", "tf32", "fp16", "bf16")


def problems() -> list[Gemm]:
    """Every shape of main-job.toml in every dtype, layout nt."""
    shapes = tomllib.loads(SHAPES.read_text())["main_job"]["shapes"]
    return [Gemm(m, n, k, dtype=dtype) for dtype in DTYPES for m, n, k in shapes]


def call_torch(pack: Any, problem: Gemm, inputs: dict[str, Array]) -> Array:
    """The pack's product of torch tensors, as float32."""
    import torch

    kind = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[problem.dtype]
    a, b = (torch.from_numpy(inputs[name].astype(np.float32)).cuda().to(kind) for name in "ab")
    d = pack.matmul(a, b.T, precision="tf32" if problem.dtype == "tf32" else "fp32")
    return d.float().cpu().numpy()  # type: ignore[no-any-return]


def call_cupy(pack: Any, problem: Gemm, inputs: dict[str, Array]) -> Array:
    """The same with CuPy arrays."""
    import cupy

    a, b = (cupy.asarray(inputs[name]) for name in "ab")
    d = pack.matmul(a, b.T, precision="tf32" if problem.dtype == "tf32" else "fp32")
    return cupy.asnumpy(d).astype(np.float32)  # type: ignore[no-any-return]


def check(problem: Gemm, inputs: dict[str, Array], d: Array) -> tuple[float, float]:
    """The error of 64 random rows, all columns, against float64, and its bound; raises where it is beyond."""
    rows = np.sort(np.random.default_rng(7).choice(problem.m, min(64, problem.m), replace=False))
    reference, scale = problem.reference(inputs, rows, np.arange(problem.n))
    bound = problem.error_bound()
    verdict = compare(d[rows], reference, scale, bound, limits=Limits.of(problem.out))
    if not verdict.passed:
        raise SystemExit(f"{problem.key}: {verdict.detail}")
    return verdict.rel_error, bound.relative


def main() -> None:
    """Benchmark, then call; both go into one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack")
    parser.add_argument("output")
    parser.add_argument("--db", default=None)
    options = parser.parse_args()
    wanted, rows = problems(), []
    for _ in range(2):  # a time that is unstable says so; such a problem is timed once more
        failures: dict[Any, GemmtuneError] = {}
        rows += benchmark(wanted, "cuda:0", options.db, options.pack, candidate=True, failed=failures.__setitem__)
        wanted = list(failures)
        for problem, error in failures.items():
            print(f"{problem.key}: {error}", flush=True)  # noqa: T201
        if not wanted:
            break
    order = {problem.key: place for place, problem in enumerate(problems())}
    rows.sort(key=lambda row: order[row.problem.key])
    result = write_result_file(options.output, rows, device="cuda:0")
    pack = gemmtune.load_pack(options.pack)
    calls = []
    for problem in problems():
        inputs = problem.inputs(seed=11)
        said = pack.explain(problem.m, problem.n, problem.k, dtype=problem.dtype, layout=problem.layout)
        for framework, call in (("torch", call_torch), ("cupy", call_cupy)):
            error, bound = check(problem, inputs, call(pack, problem, inputs))
            served = "baseline" if said.kernel is None else "kernel"
            calls.append(
                {"problem": problem.key, "framework": framework, "served_by": served, "rel_error": error,
                 "error_bound": bound}
            )  # fmt: skip
            print(calls[-1], flush=True)  # noqa: T201
    summary = {**result.summary, "calls": calls}
    save(options.output, replace(result, summary=summary))


if __name__ == "__main__":
    main()
