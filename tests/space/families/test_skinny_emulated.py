"""skinny kernels run on the CPU and proved: types, layouts, ragged sizes, pitches, epilogues, split-K, and a sample."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from gemmtune.codegen.render import render
from gemmtune.device.emulator.build import build_kernel
from gemmtune.device.emulator.emulate import Run, emulate
from gemmtune.device.emulator.launch import SCHEDULES, KernelLibrary, launch
from gemmtune.device.emulator.operands import Operands
from gemmtune.space.configuration import Configuration
from gemmtune.space.families.skinny import Skinny
from gemmtune.space.gemm import LAYOUTS, Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.space import Space

SKINNY = Skinny()
FMA = Configuration.parse(
    "skinny core=fma bm=4 tn=1 lanes_k=8 vec=1 depth=2 warps_n=2 warps_k=2 splits=1 "
    "activations=cache hint=stream blocks=1"
)
MMA = Configuration.parse(
    "skinny core=mma bm=8 tn=1 lanes_k=4 vec=8 depth=2 warps_n=1 warps_k=2 splits=1 "
    "activations=cache hint=first blocks=1"
)


def prove(
    problem: Gemm, base: Configuration, name: str = "h200", runs: list[Run] | None = None, **knobs: int | str
) -> None:
    """Emulate and assert that it is right."""
    configuration = Configuration.of("skinny", {**base, **knobs})
    h = gpu(name)
    assert SKINNY.why_invalid(problem, configuration, h) == []
    source = render(problem, configuration, SKINNY)
    capability = h.capability[0] * 10 + h.capability[1]
    found = emulate(source.text, source.recipe, problem, runs=runs, capability=capability, seed=3)
    assert found.verification.passed, f"{problem} {configuration}: {found.verification.detail}"


@pytest.mark.parametrize("activations", ["cache", "shared"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_fma_in_every_type_and_layout(dtype: str, layout: str, activations: str) -> None:
    along_k = layout[1] == "t"
    vec = 4 if dtype == "fp32" else 8
    problem = Gemm(3, 104, 328, dtype=dtype, layout=layout)
    prove(problem, FMA, vec=vec, lanes_k=8 if along_k else 4, activations=activations)


@pytest.mark.parametrize("activations", ["cache", "shared"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "m"), [("bf16", 7), ("fp16", 16)])
def test_mma_in_every_type_and_layout(dtype: str, m: int, layout: str, activations: str) -> None:
    problem = Gemm(m, 104, 328, dtype=dtype, layout=layout)
    prove(problem, MMA, bm=8 if m < 9 else 16, activations=activations)


@pytest.mark.parametrize(("dtype", "b_dtype"), [("fp32", "bf16"), ("bf16", "fp32"), ("fp16", "bf16")])
@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_operands_of_two_types(dtype: str, b_dtype: str, layout: str) -> None:
    problem = Gemm(4, 72, 160, dtype=dtype, b_dtype=b_dtype, layout=layout)
    lanes = 8 if layout == "nt" else 4
    prove(problem, FMA, vec=4, lanes_k=lanes, activations="shared" if layout == "nt" else "cache")


@pytest.mark.parametrize(("epilogue", "out_dtype"), [("identity", "fp32"), ("alpha_beta", "fp16"), ("bias", "bf16")])
@pytest.mark.parametrize("base", [FMA, MMA], ids=["fma", "mma"])
def test_every_epilogue_and_output_type(epilogue: str, out_dtype: str, base: Configuration) -> None:
    problem = Gemm(5, 90, 512, epilogue=epilogue, out_dtype=out_dtype, lda=520, ldb=528, ldd=92)
    prove(problem, base, bm=8, vec=8, splits=2, activations="shared")


@pytest.mark.parametrize(("m", "n", "k"), [(3, 67, 69), (2, 70, 74), (4, 76, 84), (1, 1, 1)])
@pytest.mark.parametrize(("dtype", "layout"), [("bf16", "nt"), ("fp16", "nn"), ("fp32", "tn"), ("bf16", "tt")])
@pytest.mark.parametrize("activations", ["cache", "shared"])
def test_unaligned_sizes_take_narrower_loads(m: int, n: int, k: int, dtype: str, layout: str, activations: str) -> None:
    problem = Gemm(m, n, k, dtype=dtype, layout=layout)
    along_k = layout[1] == "t"
    extent, width = (k if along_k else n), 16 // problem.b.bytes
    vec = next(v for v in (8, 4, 2, 1) if extent % v == 0 and v <= width)
    bm = next(b for b in (1, 2, 4) if b >= m)
    lanes = {1: 32, 2: 16, 4: 8, 8: 4}[vec]
    tile: dict[str, Any] = {"warps_n": 1, "warps_k": 1, "depth": 1} if k == 1 else {"warps_k": 1, "warps_n": 2}
    prove(problem, FMA, bm=bm, vec=vec, lanes_k=lanes if along_k else 32 // lanes, activations=activations, **tile)


@pytest.mark.parametrize("base", [FMA, MMA], ids=["fma", "mma"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pitches_beyond_the_row_are_never_touched(base: Configuration, layout: str) -> None:
    problem = Gemm(7, 88, 136, layout=layout, lda=152, ldb=160, ldd=95)
    for activations in ("cache", "shared"):
        lanes = 4 if base is MMA or layout[1] == "n" else 8
        prove(problem, base, bm=8, vec=8, lanes_k=lanes, activations=activations)


@pytest.mark.parametrize("base", [FMA, MMA], ids=["fma", "mma"])
@pytest.mark.parametrize("layout", ["nt", "nn"])
@pytest.mark.parametrize("depth", [1, 3, 8])
def test_rings_of_every_depth_run_dry_at_the_right_step(base: Configuration, layout: str, depth: int) -> None:
    lanes = 4 if base is MMA or layout == "nn" else 8
    step = (64 if layout == "nt" else 16) if base is MMA else (lanes * 8 if layout == "nt" else lanes * 4)
    for steps in (3 * depth, 3 * depth + 1, 4 * depth - 1):
        rows = 8 if base is MMA else 4
        problem = Gemm(rows, 64, step * steps, layout=layout, out_dtype="fp32")
        some = [Run(rows, SCHEDULES[steps % 3], 1.0)]
        prove(problem, base, runs=some, bm=rows, vec=8, lanes_k=lanes, depth=depth, warps_n=1, warps_k=2)


def test_many_rows_on_the_tensor_cores() -> None:
    for m, layout in ((64, "nt"), (41, "nn"), (24, "tt")):
        problem = Gemm(m, 136, 200, dtype="fp16", layout=layout)
        prove(problem, MMA, bm=-(-m // 8) * 8, activations="shared" if m == 24 else "cache")


def test_kernels_take_more_rows_than_they_were_made_for() -> None:
    configuration = Configuration.of("skinny", {**FMA, "vec": 8})
    source = render(Gemm(4, 72, 128), configuration, SKINNY)
    found = emulate(source.text, source.recipe, Gemm(11, 72, 128), capability=90, seed=3)
    assert found.verification.passed, found.verification.detail


@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_turing_has_both_cores(layout: str) -> None:
    problem = Gemm(8, 72, 136, dtype="fp16", layout=layout)
    prove(problem, MMA, "t4", hint="stream", activations="shared")
    prove(problem, FMA, "t4", bm=8, vec=8, lanes_k=4, activations="shared", warps_n=1)


@pytest.mark.parametrize("base", [FMA, MMA], ids=["fma", "mma"])
@pytest.mark.parametrize("splits", [2, 3, 8])
def test_split_k_adds_up_whoever_comes_last(base: Configuration, splits: int) -> None:
    problem = Gemm(8, 72, 1096, epilogue="alpha_beta")
    prove(problem, base, bm=8, vec=8, splits=splits, depth=1)


def test_split_k_gives_the_same_bits_in_every_order() -> None:
    problem = Gemm(3, 40, 1024, out_dtype="fp32")
    source = render(problem, Configuration.of("skinny", {**FMA, "vec": 8, "splits": 4}), SKINNY)
    library = KernelLibrary(build_kernel(source.text, source.entry))
    pitches = {t.name: t.ld for t in problem.tensors()}
    results = []
    for schedule in SCHEDULES:
        operands = Operands.make(problem, np.arange(3), np.arange(40), pitches, seed=1, at_end=True)
        operands.scratch("workspace", source.recipe.workspace, at_end=True, zero=False)
        operands.scratch("counters", source.recipe.counters, at_end=True, zero=True)
        names = [a.name or a.kind for a in source.recipe.arguments]
        scalars = {"m": ctypes.c_int32(3), **{f"ld{n}": ctypes.c_int64(ld) for n, ld in pitches.items()}}
        arguments = [scalars.get(n) or ctypes.c_void_p(operands.buffers[n].address) for n in names]
        launch(
            library,
            grid=source.recipe.grid_size(operands.environment),
            block=source.recipe.block,
            arguments=arguments,
            buffers=list(operands.buffers.values()),
            dynamic_shared=source.recipe.dynamic_shared,
            schedule=schedule,
        )
        results.append(operands.output.tobytes())
        operands.free()
    library.close()
    assert len(set(results)) == 1


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        # The ring goes on past the end of the block's slice of K: other blocks' products count twice.
        ("if (k >= stop) goto done;", "if (k >= stop + STRIDE) goto done;"),
        # The sums overlay activations that other warps still read.
        ("  hw::sync_block();  // the activations, which the sums overlay, are read no more\n", ""),
        # Nobody waits for the other warps' sums.
        ("  hw::sync_block();\n  const Epilogue epilogue", "  const Epilogue epilogue"),
        # A lane's fragment takes the other half of its neighbour's k.
        ("low[2 * q + 1], high[2 * q + 1]}", "low[2 * q], high[2 * q + 1]}"),
    ],
)
def test_planted_faults_are_found(part: str, fault: str) -> None:
    problem = Gemm(16, 72, 64 * 12, out_dtype="fp32")
    configuration = Configuration.of("skinny", {**MMA, "bm": 16, "splits": 2, "warps_k": 4, "activations": "shared"})
    source = render(problem, configuration, SKINNY)
    assert source.text.count(part) == 1
    found = emulate(source.text.replace(part, fault), source.recipe, problem, capability=90, seed=3)
    assert not found.verification.passed


def test_a_seeded_sample_of_the_whole_space() -> None:
    rng = np.random.default_rng(20)
    problems = [
        Gemm(1, 200, 1056, dtype="fp16", layout="nt", epilogue="bias"),
        Gemm(16, 136, 520, dtype="bf16", layout="nt", out_dtype="fp32"),
        Gemm(4, 72, 1000, dtype="bf16", layout="tt", epilogue="alpha_beta"),
        Gemm(13, 264, 270, dtype="bf16", layout="nn"),
        Gemm(2, 100, 644, dtype="fp32", layout="nt"),
        Gemm(8, 192, 333, dtype="fp16", layout="tn"),
    ]
    for problem in problems:
        for name in ("h200", "t4" if problem.dtype != "bf16" else "l4"):
            space = Space(problem, gpu(name), [SKINNY])
            for i in rng.integers(len(space), size=2):
                prove(problem, space[int(i)], name, runs=[Run(problem.m, SCHEDULES[int(i) % 3], 0.3)])
