"""NaN and infinity go where IEEE arithmetic takes them and nowhere else: tails of k, every layout, split-K."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from gemmtune.codegen.render import render
from gemmtune.device.emulator.emulate import emulate, plan_runs
from gemmtune.space.configuration import Configuration
from gemmtune.space.families import family
from gemmtune.space.gemm import LAYOUTS, Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.problem import Array

H200 = gpu("h200")
SIMT = {
    "bm": 32, "bn": 32, "bk": 8, "tm": 2, "tn": 4, "lanes_m": 8, "vec_a": 1, "vec_b": 1, "pad": 4, "unroll": 8,
    "buffers": 2, "min_blocks": 1, "group": 1,
}  # fmt: skip
MMA = {
    "bm": 64, "bn": 64, "bk": 32, "wm": 32, "wn": 32, "stages": 2, "smem": "xor", "ldmatrix": 1, "fragments": 2,
    "unroll": 1, "splits": 1, "group": 4, "store": "direct", "blocks": 1,
}  # fmt: skip

HOPPER = {
    "bm": 64, "bn": 40, "bk": 64, "stages": 2, "warpgroups": 1, "schedule": "cooperative", "cluster": "1x1",
    "raster": "rows", "group": 1, "splits": 1, "stream": 0, "swap": 0, "hints": "none", "store": "shared",
    "producer": 24, "persistent": 0, "programmatic": 0, "blocks": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Poisoned(Gemm):
    """A problem whose inputs hold NaN and infinity, also at the very end of k."""

    def inputs(self, seed: int) -> dict[str, Array]:
        arrays = super().inputs(seed)
        for name, letter, (first, second) in (("a", 0, (np.nan, np.inf)), ("b", 1, (np.inf, -np.inf))):
            k_is_last = self.layout[letter] == ("n" if name == "a" else "t")
            matrix = arrays[name] if k_is_last else arrays[name].T
            matrix[0, -1], matrix[-1, 0] = first, second
        return arrays


def prove(problem: Gemm, configuration: Configuration) -> None:
    arrays = problem.inputs(0)
    d, _ = problem.reference(arrays, np.arange(problem.m), np.arange(problem.n))
    assert np.isnan(d).any()
    assert np.isfinite(d[1:-1, 1:-1]).all()
    kernel = family(configuration.family)
    assert kernel.why_invalid(problem, configuration, H200) == [] or not kernel.searchable
    source = render(problem, configuration)
    found = emulate(source.text, source.recipe, problem, runs=plan_runs(problem, source.recipe, 0)[:1])
    assert found.verification.passed, found.verification.detail


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "out", "buffers"), [("fp32", "fp32", 2), ("bf16", "fp16", 1)])
def test_simt(layout: str, dtype: str, out: str, buffers: int) -> None:
    knobs = {**SIMT, "buffers": buffers, "pad": 0 if layout == "tn" else 4}
    prove(Poisoned(40, 36, 21, dtype, out, layout), Configuration.of("simt", knobs))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_mma(layout: str, dtype: str) -> None:
    knobs = {**MMA, "ldmatrix": 0} if (dtype, layout) == ("tf32", "tn") else MMA
    prove(Poisoned(70, 72, 44, dtype, layout=layout), Configuration.of("mma", knobs))


@pytest.mark.parametrize(("splits", "store", "out"), [(2, "direct", "fp32"), (3, "shared", "bf16")])
def test_mma_with_split_k(splits: int, store: str, out: str) -> None:
    knobs = {**MMA, "splits": splits, "store": store}
    prove(Poisoned(70, 72, 140, "fp16", out), Configuration.of("mma", knobs))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("swap", [0, 1])
def test_hopper(layout: str, swap: int) -> None:
    prove(Poisoned(72, 80, 88, "bf16", layout=layout), Configuration.of("hopper", {**HOPPER, "swap": swap}))


def test_hopper_with_tf32_and_split_k() -> None:
    prove(Poisoned(72, 80, 88, "tf32"), Configuration.of("hopper", {**HOPPER, "bk": 32, "stages": 2}))
    prove(Poisoned(72, 80, 280, "fp16", "fp32"), Configuration.of("hopper", {**HOPPER, "splits": 2, "stages": 3}))


def test_naive() -> None:
    prove(Poisoned(20, 24, 9, "fp16", "fp32", "nn"), Configuration.of("naive", {}))
