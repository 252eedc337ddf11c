"""mma kernels run on the CPU and proved: dtypes, layouts, ragged sizes, pitches, epilogues, split-K, and a sample."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from gemmtune.codegen.render import render
from gemmtune.device.emulator.build import build_kernel
from gemmtune.device.emulator.emulate import Run, emulate
from gemmtune.device.emulator.launch import SCHEDULES, KernelLibrary, launch
from gemmtune.device.emulator.operands import Operands
from gemmtune.space.configuration import Configuration
from gemmtune.space.families.mma import Mma
from gemmtune.space.gemm import LAYOUTS, Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.space import Space

MMA = Mma()
SMALL = Configuration.parse(
    "mma bm=64 bn=64 bk=32 wm=32 wn=32 stages=3 smem=xor ldmatrix=1 fragments=2 unroll=1 splits=1 group=4 "
    "store=direct blocks=1"
)


def small(problem: Gemm, **knobs: int | str) -> Configuration:
    """SMALL with other knobs, and ldmatrix only where it can be."""
    values = {**SMALL, **knobs}
    if problem.dtype == "tf32" and problem.layout == "tn":
        values["ldmatrix"] = 0
    return Configuration.of("mma", values)


def prove(
    problem: Gemm, configuration: Configuration, name: str = "h200", runs: list[Run] | None = None
) -> dict[str, float]:
    """Emulate, assert that it is right, and give the counters."""
    h = gpu(name)
    assert MMA.why_invalid(problem, configuration, h) == []
    source = render(problem, configuration, MMA)
    capability = h.capability[0] * 10 + h.capability[1]
    found = emulate(source.text, source.recipe, problem, runs=runs, capability=capability, seed=3)
    assert found.verification.passed, f"{problem} {configuration}: {found.verification.detail}"
    return dict(found.counters)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "tf32"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_dtype_and_layout_at_a_ragged_size(dtype: str, layout: str) -> None:
    problem = Gemm(104, 72, 88, dtype=dtype, layout=layout)
    prove(problem, small(problem))


@pytest.mark.parametrize(("layout", "ldmatrix"), [("nt", 1), ("nn", 0), ("tn", 1), ("tt", 1), ("nt", 0)])
def test_turing_copies_through_registers_and_multiplies_in_halves(layout: str, ldmatrix: int) -> None:
    problem = Gemm(104, 72, 88, dtype="fp16", layout=layout)
    prove(problem, small(problem, stages=2, ldmatrix=ldmatrix), "t4")


@pytest.mark.parametrize(("epilogue", "out_dtype"), [("identity", "fp32"), ("alpha_beta", "fp16"), ("bias", "bf16")])
@pytest.mark.parametrize("store", ["direct", "shared"])
def test_every_epilogue_and_output_type(epilogue: str, out_dtype: str, store: str) -> None:
    problem = Gemm(72, 90, 64, epilogue=epilogue, out_dtype=out_dtype, layout="nn", lda=72, ldb=96, ldd=92)
    prove(problem, small(problem, store=store, stages=2))


@pytest.mark.parametrize(
    ("m", "n", "k"),
    # Sizes that are multiples of nothing; pitches then allow 2, 4, 8 bytes at a time. Below, pitches beyond the size.
    [(65, 67, 69), (66, 70, 74), (68, 76, 84), (1, 1, 1)],
)
@pytest.mark.parametrize(("dtype", "layout"), [("bf16", "nt"), ("fp16", "nn"), ("tf32", "tt")])
def test_unaligned_sizes_take_narrower_copies(m: int, n: int, k: int, dtype: str, layout: str) -> None:
    problem = Gemm(m, n, k, dtype=dtype, layout=layout)
    tile: dict[str, int | str] = {"bm": 16, "wm": 16} if m < 16 else {}
    if n == 1:
        tile |= {"bn": 16, "wn": 8, "bk": 64 // problem.a.bytes}
    prove(problem, small(problem, group=1, stages=2, **tile))


@pytest.mark.parametrize(("lda", "ldb", "ldd"), [(96, 96, 96), (92, 90, 75), (91, 96, 74)])
@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_pitches_beyond_the_row_are_never_touched(lda: int, ldb: int, ldd: int, layout: str) -> None:
    problem = Gemm(90, 73, 85, layout=layout, lda=lda, ldb=ldb, ldd=ldd)
    prove(problem, small(problem, stages=2))


@pytest.mark.parametrize("layout", ["nt", "tt"])
def test_offsets_pass_32_bits(layout: str) -> None:
    problem = Gemm(40, 40, 40, layout=layout, lda=2**26, ldb=2**26)
    configuration = small(problem, bm=32, bn=32, wm=16, wn=16, bk=64, stages=2)
    assert "TileCopy<TA, A_ROWS_ARE_K, BM, false, 16, i64>" in render(problem, configuration, MMA).text
    prove(problem, configuration, runs=[Run(40, SCHEDULES[0], 1.0)])


@pytest.mark.parametrize(("splits", "store"), [(2, "direct"), (3, "shared"), (8, "direct")])
def test_split_k_adds_up_whoever_comes_last(splits: int, store: str) -> None:
    problem = Gemm(72, 68, 260, epilogue="alpha_beta")
    prove(problem, small(problem, splits=splits, stages=2, store=store))


def test_split_k_gives_the_same_bits_in_every_order() -> None:
    problem = Gemm(33, 40, 256, out_dtype="fp32")
    source = render(problem, small(problem, bm=32, bn=32, wm=16, wn=16, bk=64, splits=4, stages=2), MMA)
    library = KernelLibrary(build_kernel(source.text, source.entry))
    pitches = {t.name: t.ld for t in problem.tensors()}
    results = []
    for schedule in SCHEDULES:
        operands = Operands.make(problem, np.arange(33), np.arange(40), pitches, seed=1, at_end=True)
        operands.scratch("workspace", source.recipe.workspace, at_end=True, zero=False)
        operands.scratch("counters", source.recipe.counters, at_end=True, zero=True)
        names = [a.name or a.kind for a in source.recipe.arguments]
        scalars = {"m": ctypes.c_int32(33), **{f"ld{n}": ctypes.c_int64(ld) for n, ld in pitches.items()}}
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


@pytest.mark.parametrize(("stages", "fragments"), [(2, 1), (2, 2), (3, 2), (4, 1), (5, 2), (6, 2), (6, 1)])
def test_every_depth_of_the_pipeline(stages: int, fragments: int) -> None:
    problem = Gemm(48, 40, 200, layout="tn")
    knobs: dict[str, int | str] = {"unroll": 2} if stages % 2 else {}
    prove(problem, small(problem, bm=32, bn=32, wm=16, wn=16, stages=stages, fragments=fragments, **knobs))


@pytest.mark.parametrize(("dtype", "bk"), [("bf16", 32), ("bf16", 64), ("bf16", 16), ("tf32", 16), ("tf32", 32)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_swizzled_tiles_meet_no_bank_twice(dtype: str, bk: int, layout: str) -> None:
    problem = Gemm(128, 128, 2 * bk, dtype=dtype, layout=layout)
    configuration = small(problem, bk=bk, stages=2, fragments=1)
    counters = prove(problem, configuration, runs=[Run(128, SCHEDULES[0], 0.05, profile=True)])
    for way in ("read", "write"):
        assert counters[f"shared_{way}_transactions"] == counters[f"shared_{way}_ideal"]


def test_a_seeded_sample_of_the_whole_space() -> None:
    rng = np.random.default_rng(20)
    problems = [
        Gemm(130, 100, 96, dtype="fp16", layout="tn", epilogue="bias"),
        Gemm(64, 200, 264, dtype="tf32", layout="nn", out_dtype="bf16"),
        Gemm(33, 72, 1000, dtype="bf16", layout="tt", epilogue="alpha_beta", out_dtype="fp32"),
        Gemm(200, 136, 70, dtype="bf16", layout="nt"),
    ]
    for problem in problems:
        for name in ("h200", "rtx4090", "t4") if problem.dtype == "fp16" else ("h200", "l4"):
            space = Space(problem, gpu(name), [MMA])
            for i in rng.integers(len(space), size=2):
                prove(problem, space[int(i)], name, runs=[Run(problem.m, SCHEDULES[int(i) % 3], 0.3)])
