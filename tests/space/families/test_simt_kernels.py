"""simt and naive kernels, run: a seeded sample of the space over dtypes, layouts, epilogues and ragged sizes.

Each kernel runs in the emulator under several schedules, sizes and pitches, in guarded and poisoned memory, and all
that it wrote is compared with float64.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gemmtune.codegen.render import render
from gemmtune.device.emulator.emulate import Emulation, emulate
from gemmtune.device.emulator.toolchain import find_toolchain
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ToolchainError
from gemmtune.space.families import family
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.space import Space

SIMT = family("simt")
H200 = gpu("h200")
WORK = 1_500_000  # multiply-adds of one kernel's runs: some tenths of a second


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))


def run(problem: Gemm, configuration: Configuration) -> Emulation:
    source = render(problem, configuration)
    found = emulate(source.text, source.recipe, problem, seed=5, work=WORK)
    assert found.fault == "", f"{problem} {configuration}: {found.verification.detail}"
    assert found.verification.excess <= 1
    return found


def sample(problem: Gemm, seed: int) -> Configuration:
    space = Space(problem, H200, [SIMT])
    return space[random.Random(seed).randrange(len(space))]


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize(
    ("shape", "dtype", "out", "epilogue"),
    [
        ((130, 70, 33), "fp32", "fp32", "identity"),
        ((64, 128, 64), "bf16", "bf16", "bias"),
        ((77, 100, 36), "fp16", "fp32", "alpha_beta"),
        ((33, 31, 129), "fp32", "fp16", "bias"),
    ],
    ids=lambda v: "x".join(map(str, v)) if isinstance(v, tuple) else v,
)
def test_a_sample_of_the_space_is_right(
    layout: str, shape: tuple[int, int, int], dtype: str, out: str, epilogue: str
) -> None:
    problem = Gemm(*shape, dtype, out, layout, epilogue)
    run(problem, sample(problem, seed=len(layout + dtype + epilogue) + sum(shape)))


@pytest.mark.parametrize("layout", ["nt", "tn", "tt"])
def test_padded_pitches_that_allow_wide_loads_end_inside_a_vector(layout: str) -> None:
    """K and M end within a vector, while rows are long enough for one more: it must not be read past the end."""
    problem = Gemm(70, 50, 37, "fp16", "fp16", layout, lda=104, ldb=104, ldd=56)
    configuration = Configuration.parse(
        "simt bm=64 bn=32 bk=16 tm=4 tn=4 lanes_m=8 vec_a=8 vec_b=4 pad=4 unroll=8 buffers=2 min_blocks=1 group=1"
    )
    configuration = Configuration.of("simt", {**configuration, "pad": 0 if layout == "tn" else 4})
    assert SIMT.why_invalid(problem, configuration, H200) == []
    run(problem, configuration)


@pytest.mark.parametrize("buffers", [1, 2])
@pytest.mark.parametrize("strips", [(2, 2), (4, 16), (16, 4), (8, 8)])
def test_every_thread_tile_and_buffering(buffers: int, strips: tuple[int, int]) -> None:
    tm, tn = strips
    problem = Gemm(160, 144, 40, "fp32")
    configuration = Configuration.of(
        "simt",
        {"bm": 64 if tm < 16 else 128, "bn": 64 if tn < 16 else 128, "bk": 16, "tm": tm, "tn": tn, "lanes_m": 8}
        | {"vec_a": 1, "vec_b": 1, "pad": 4, "unroll": 4, "buffers": buffers, "min_blocks": 1, "group": 1},
    )
    assert SIMT.why_invalid(problem, configuration, H200) == []
    run(problem, configuration)


@pytest.mark.parametrize("b_dtype", ["bf16", "fp32"])
def test_operands_of_different_types(b_dtype: str) -> None:
    problem = Gemm(50, 60, 70, "fp16", "fp32", b_dtype=b_dtype)
    run(problem, sample(problem, 3))


def test_raster_groups_write_the_tiles_that_the_recipe_names() -> None:
    problem = Gemm(300, 100, 16, "fp32", epilogue="alpha_beta")
    configuration = Configuration.parse(
        "simt bm=32 bn=32 bk=8 tm=2 tn=4 lanes_m=8 vec_a=2 vec_b=2 pad=4 unroll=8 buffers=2 min_blocks=1 group=4"
    )
    assert SIMT.why_invalid(problem, configuration, H200) == []
    run(problem, configuration)


@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_the_classic_sgemm_meets_no_bank_twice(layout: str) -> None:
    problem = Gemm(128, 128, 64, "fp32", layout=layout)
    configuration = Configuration.parse(
        f"simt bm=128 bn=128 bk=8 tm=8 tn=8 lanes_m=4 vec_a=4 vec_b=4 pad={0 if layout == 'tn' else 4} unroll=8 "
        "buffers=2 min_blocks=2 group=1"
    )
    counters = run(problem, configuration).counters
    assert counters["bank_conflict_factor"] == 1
    assert counters["sector_factor"] == 1


@pytest.mark.parametrize(("bk", "vec", "pad"), [(8, 1, 0), (8, 2, 8), (16, 1, 4), (16, 4, 4), (32, 4, 4), (8, 4, 0)])
def test_the_rule_of_bank_layout_predicts_what_the_emulator_counts(bk: int, vec: int, pad: int) -> None:
    problem = Gemm(64, 64, 64, "fp32", layout="nt")
    values = {"bm": 64, "bn": 64, "bk": bk, "tm": 8, "tn": 8, "lanes_m": 4, "vec_a": vec, "vec_b": vec, "pad": pad}
    values |= {"unroll": 8, "buffers": 1, "min_blocks": 1, "group": 1}
    configuration = Configuration.of("simt", values)
    env = SIMT.bind(problem, configuration, H200)
    counters = run(problem, configuration).counters
    assert counters["shared_write_transactions"] == env["conflict_a"] * counters["shared_write_requests"]
    assert env["conflict_a"] == env["conflict_b"]


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_the_naive_kernel_is_right(layout: str) -> None:
    problem = Gemm(45, 37, 29, "bf16", "fp16", layout, "alpha_beta", lda=60, ldd=41)
    run(problem, Configuration.of("naive", {}))
    run(replace(problem, dtype="tf32", b_dtype="tf32", out_dtype="fp32"), Configuration.of("naive", {}))
