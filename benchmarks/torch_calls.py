"""What a call of the torch operators costs the host: ``python benchmarks/torch_calls.py PACK OUT.json`` on a GPU.

For the smallest problems of the pack that have a kernel (so that the GPU keeps up with the host), in one run:

* host microseconds of ``torch.ops.gemmtune.matmul``, ``gemmtune.torch.matmul`` and a swapped ``nn.Linear``, beside
  ``torch.mm`` and ``nn.Linear``: the quickest of batches of calls in many short turns, since a busy machine is slow for
  seconds at a time, and would else be so for one of them alone;
* a CUDA graph of many calls, replayed: microseconds a call, of the operator and of ``pack.matmul``, which launch the
  same kernel, so that nothing but the kernel may be left;
* ``--calls`` calls (10^6), the problems in turn: host memory (resident) and device memory after a tenth of them, half
  of them and all, and whether they are flat from the first to the last;
* ``torch.library.opcheck`` of every operator on GPU tensors, where a kernel serves and where torch does.
"""

from __future__ import annotations

import argparse
import itertools
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

import gemmtune
import gemmtune.torch as gt
from gemmtune.device import open_device
from gemmtune.pack.profile import BATCH, BATCHES, profile
from gemmtune.pack.schema import BASELINE
from gemmtune.search.result_file import blank_result
from gemmtune.search.results import save
from gemmtune.space.gemm import Gemm
from gemmtune.torch.operators import LINEAR, MATMUL

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DEVICE = "cuda"
TURNS, PROBLEMS, GRAPH = 15, 3, 200
ALLOWED_US = 6.0
FLAT = 2**20
"""Bytes by which memory may differ and yet be called flat: an allocator's smallest blocks."""
PROTOCOL = (
    "Host microseconds: quickest of {batches} batches of {batch} calls in each of {turns} turns, and the quickest turn "
    "of all; 'median turn' tells what a busy machine added. "
    "Graphs: {graph} calls captured, medians of 20 replays by events. Memory: resident set and cudaMemGetInfo."
)


def main() -> None:
    """Measure everything and write one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack")
    parser.add_argument("output")
    parser.add_argument("--calls", type=int, default=10**6)
    options = parser.parse_args()
    pack = gemmtune.load_pack(options.pack)
    key = gt.use(pack, strict=True, host_us=0)
    rows, problems = [], smallest(pack)
    for problem in problems:
        rows.append({"problem": problem.key, **host(problem, key), **graphs(problem, key, pack)})
    found = opchecks(key, problems[0])
    summary = {
        "calls": rows,
        "allowed_us": ALLOWED_US,
        "within": all(row["torch.ops"] <= row["torch.mm"] + ALLOWED_US for row in rows),
        "graph_difference": max(abs(row["graph torch.ops"] / row["graph pack.matmul"] - 1) for row in rows),
        "memory": memory([tensors(problem) for problem in problems], key, options.calls),
        "opcheck": found,
        "opcheck_passed": all(said == "SUCCESS" for one in found.values() for said in one.values()),
        "served": gt.served(key),
    }
    text = PROTOCOL.format(batches=BATCHES, batch=BATCH, turns=TURNS, graph=GRAPH)
    with closing(open_device("cuda:0")) as device:
        result = blank_result(Path(options.output).stem, device, text, summary)
    save(options.output, replace(result, versions={**result.versions, "torch": torch.__version__}))


def smallest(pack: Any) -> list[Gemm]:
    """The smallest problems that a kernel of this pack serves on this GPU, without an epilogue, in torch's dtypes."""
    device = pack.state(0).key
    found = {
        row.problem(dict(row.points[0].axes)) if row.points else row.problem()
        for table in pack.tables
        if table.device == device
        for row in table.rows
        if row.kernel != BASELINE and row.epilogue == "identity" and row.dtypes["a"] in DTYPES
    }
    packed = [p for p in found if isinstance(p, Gemm) and p.dtype == p.out_dtype and not (p.lda or p.ldb or p.ldd)]
    if not packed:
        raise SystemExit("The pack has no kernel for this GPU that torch could call.")
    return sorted(packed, key=lambda p: p.flops)[:PROBLEMS]


def tensors(problem: Gemm) -> tuple[Any, Any]:
    """A [M, K] and B [K, N] in the problem's layout."""
    made = []
    for letter, (rows, columns) in zip(problem.layout, ((problem.m, problem.k), (problem.k, problem.n)), strict=True):
        stored = (rows, columns) if letter == "n" else (columns, rows)
        tensor = torch.randn(stored, device=DEVICE, dtype=DTYPES[problem.dtype])
        made.append(tensor if letter == "n" else tensor.t())
    return made[0], made[1]


def host(problem: Gemm, key: str) -> dict[str, Any]:
    """Host microseconds of each way to call, and of its median turn."""
    a, b = tensors(problem)
    calls = {
        "torch.mm": lambda: torch.mm(a, b),
        "torch.ops": lambda: MATMUL(a, b, None, key),
        "gemmtune.torch": lambda: gt.matmul(a, b, pack=key),
    }
    if problem.layout == "nt":
        plain = torch.nn.Linear(problem.k, problem.n, bias=False, device=DEVICE, dtype=a.dtype)
        swapped = torch.nn.Linear(problem.k, problem.n, bias=False, device=DEVICE, dtype=a.dtype)
        gt.optimize_(swapped, key)
        calls |= {"nn.Linear": lambda: plain(a), "swapped nn.Linear": lambda: swapped(a)}
    with torch.no_grad():
        found: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(TURNS):
            for name, call in calls.items():
                found[name].append(profile({}, call, torch.cuda.synchronize)["total"])
    quickest = {name: round(min(us), 2) for name, us in found.items()}
    return {**quickest, "median turn": {name: round(median(us), 2) for name, us in found.items()}}


def graphs(problem: Gemm, key: str, pack: Any) -> dict[str, float]:
    """Microseconds a call in a replayed graph, of the operator and of the pack itself."""
    a, b = tensors(problem)
    calls = {"graph torch.ops": lambda: MATMUL(a, b, None, key), "graph pack.matmul": lambda: pack.matmul(a, b)}
    made = {}
    for name, call in calls.items():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
            side.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                for _ in range(GRAPH):
                    call()
        made[name] = graph
    samples: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(20):
        for name, graph in made.items():
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            graph.replay()
            last.record()
            last.synchronize()
            samples[name].append(first.elapsed_time(last) * 1e3 / GRAPH)
    return {name: round(median(us), 3) for name, us in samples.items()}


def memory(operands: list[tuple[Any, Any]], key: str, calls: int) -> dict[str, Any]:
    """Resident host bytes and used device bytes after a tenth of the calls, half of them, and all."""
    marks = {calls // 10, calls // 2, calls}
    found: dict[str, Any] = {"calls": calls, "host": [], "device": []}
    for count, (a, b) in zip(range(1, calls + 1), itertools.cycle(operands), strict=False):
        MATMUL(a, b, None, key)
        if count in marks:
            torch.cuda.synchronize()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            free, total = torch.cuda.mem_get_info()
            found["host"].append(pages * 4096)
            found["device"].append(total - free)
    found["flat"] = all(abs(found[where][-1] - found[where][0]) <= FLAT for where in ("host", "device"))
    return found


def opchecks(key: str, tuned: Gemm) -> dict[str, dict[str, str]]:
    """What ``torch.library.opcheck`` says of each operator, where ``tuned`` has its kernel run and where torch does."""
    a, b = tensors(tuned)
    cases: dict[str, tuple[Any, tuple[Any, ...]]] = {}
    if tuned.layout[1] == "t":
        cases["linear tuned"] = LINEAR, (a, b.t().detach())
    cases["matmul tuned"] = MATMUL, (a, b)
    for name, operator, shape in (("linear", LINEAR, (32, 16)), ("matmul", MATMUL, (16, 32))):
        left, right = torch.randn(2, 4, 16, device=DEVICE), torch.randn(shape, device=DEVICE)
        cases[name] = operator, (left, right)
        cases[f"{name} bias"] = operator, (left, right, torch.randn(32, device=DEVICE))
    out = {}
    for name, (operator, operands) in cases.items():
        given = [t.requires_grad_() for t in operands] + [None] * (3 - len(operands))
        said = torch.library.opcheck(operator, (*given, key), raise_exception=False)  # a refusal is a result too
        out[name] = {test: str(what) for test, what in said.items()}
    return out


if __name__ == "__main__":
    main()
