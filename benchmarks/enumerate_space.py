"""How long a large space takes to enumerate: more than 1e6 valid configurations out of a raw product above 1e8.

    python benchmarks/enumerate_space.py

Prints the counts, the seconds and the peak memory of the process, and what the imports alone took. The goal is below
3 s and below 1 GB. This is a figure to look at, not a test: a loaded machine is slower.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping
from typing import Any

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.constraint import Constraint
from gemmtune.space.family import Family, Traits
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu, gpu
from gemmtune.space.problem import Problem
from gemmtune.space.recipe import LaunchRecipe
from gemmtune.space.space import Space


class Large(Family):
    """A tensor-core family with finer knobs than the shipped ones, to be counted and never compiled."""

    name = "large"
    summary = "a large space to enumerate"
    definitions: Mapping[str, str] = {
        "warps": "(bm // wm) * (bn // wn)",
        "threads": "warps * 32",
        "pitch": "bk + pad",
        "shared": "(bm + bn) * pitch * size_a * stages",
        "accumulators": "wm * wn // 32",
        "registers": "accumulators + (wm + wn) * 16 // 32 + 40",
    }
    constraints = (
        Constraint("warp_tiling", "bm % wm == 0 and bn % wn == 0", "{wm}x{wn} does not divide {bm}x{bn}"),
        Constraint("threads", "threads >= 64 and threads <= threads_per_block", "{threads} threads"),
        Constraint("registers", "registers * threads <= registers_per_sm", "{registers} registers a thread"),
        Constraint("accumulators", "accumulators <= 128", "{accumulators} accumulators a thread"),
        Constraint("shared_memory", "shared <= shared_per_block", "{shared} bytes of shared memory"),
        Constraint("bank_layout", "pitch * size_a % 128 != 0 or swizzle > 0", "rows of {pitch} elements meet one bank"),
        Constraint("one_of_both", "pad == 0 or swizzle == 0", "padding and swizzle exclude each other"),
        Constraint("unroll", "bk // 16 % unroll == 0", "{unroll} does not divide the {bk} of a step"),
        Constraint("splits", "splits == 1 or k >= splits * bk * 4", "{splits} splits of {k} are too short"),
        Constraint("vector", "pitch % vector == 0 and bk * bm % (threads * vector) == 0", "vectors of {vector}"),
    )

    def unsupported(self, problem: Problem, gpu: Gpu) -> str | None:
        return None

    def parameters(self, problem: Problem, gpu: Gpu) -> tuple[Parameter, ...]:
        return (
            Parameter("bm", tuple(range(16, 257, 16))),
            Parameter("bn", tuple(range(16, 257, 16))),
            Parameter("bk", (16, 32, 64, 128)),
            Parameter("wm", (16, 32, 48, 64, 96, 128)),
            Parameter("wn", (8, 16, 24, 32, 48, 64, 96, 128)),
            Parameter("stages", (2, 3, 4, 5, 6)),
            Parameter("pad", (0, 8, 16)),
            Parameter("swizzle", (0, 1, 2)),
            Parameter("vector", (2, 4, 8)),
            Parameter("unroll", (1, 2, 4)),
            Parameter("splits", (1, 2, 4, 8)),
            Parameter("raster", (1, 4, 8, 16)),
        )

    def plan(self, problem: Problem, configuration: Configuration) -> LaunchRecipe:
        raise NotImplementedError("this family is only counted")

    def traits(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> Traits:
        raise NotImplementedError("this family is only counted")

    def context(self, problem: Problem, configuration: Configuration) -> dict[str, Any]:
        raise NotImplementedError("this family is only counted")


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Enumerate and print."""
    before = _peak_mb()
    space = Space(Gemm(4096, 4096, 4096), gpu("h200"), [Large()])
    start = time.perf_counter()
    valid = len(space)
    seconds = time.perf_counter() - start
    sys.stdout.write(f"raw {space.raw_size:.3e}  valid {valid}  {seconds:.2f} s  ")
    sys.stdout.write(f"peak memory {_peak_mb():.0f} MB ({before:.0f} MB after the imports)\n")
    for name, count in sorted(space.rejections.items(), key=lambda item: -item[1]):
        sys.stdout.write(f"  {name:14} rejects {count}\n")


if __name__ == "__main__":
    main()
