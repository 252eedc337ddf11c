"""The mma family's rules, plans and sentences."""

from __future__ import annotations

import numpy as np
import pytest

from gemmtune.codegen.render import render
from gemmtune.space.configuration import Configuration
from gemmtune.space.estimate import estimate
from gemmtune.space.expression import expression
from gemmtune.space.families.mma import Mma
from gemmtune.space.gemm import LAYOUTS, Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.recipe import LaunchRecipe
from gemmtune.space.space import Space

MMA = Mma()
BASE = Configuration.parse(
    "mma bm=128 bn=256 bk=32 wm=64 wn=64 stages=4 smem=xor ldmatrix=1 fragments=2 unroll=1 splits=1 group=8 "
    "store=direct blocks=1"
)
LARGE = Gemm(4096, 4096, 4096)


def changed(**knobs: int | str) -> Configuration:
    return Configuration.of("mma", {**BASE, **knobs})


@pytest.mark.parametrize(
    ("problem", "name", "part"),
    [
        (Gemm(64, 64, 64, dtype="fp32"), "h200", "use family simt, or dtype tf32"),
        (Gemm(64, 64, 64, dtype="bf16"), "t4", "use fp16"),
        (Gemm(64, 64, 64, dtype="tf32"), "t4", "use fp16"),
        (Gemm(64, 64, 64, dtype="fp16"), "v100", "needs compute capability 7.5"),
        (Gemm(64, 64, 64, dtype="bf16", b_dtype="fp16"), "h200", "convert one of them"),
    ],
)
def test_what_it_cannot_serve_has_a_reason(problem: Gemm, name: str, part: str) -> None:
    assert part in (MMA.unsupported(problem, gpu(name)) or "")


@pytest.mark.parametrize(("dtype", "name"), [("fp16", "t4"), ("bf16", "a100"), ("fp16", "l4"), ("tf32", "b200")])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_serves_its_dtypes_in_every_layout(dtype: str, name: str, layout: str) -> None:
    problem = Gemm(1000, 1001, 999, dtype=dtype, layout=layout)
    assert MMA.unsupported(problem, gpu(name)) is None
    assert len(Space(problem, gpu(name), [MMA])) > 1000


@pytest.mark.parametrize(
    ("constraint", "problem", "name", "knobs"),
    [
        ("warp_tiling", LARGE, "h200", {"bm": 128, "wm": 96}),
        ("tile_size", Gemm(60, 4096, 4096), "h200", {}),
        ("threads", LARGE, "h200", {"bm": 256, "bn": 256, "wm": 16, "wn": 16}),
        ("shared_memory", LARGE, "rtx4090", {"stages": 6}),
        ("shared_memory", LARGE, "h200", {"bk": 64, "blocks": 2, "stages": 4}),
        ("copy_division", Gemm(4096, 4096, 4096, layout="nn"), "h200", {"bn": 192, "wn": 96}),
        ("copy_count", Gemm(4096, 4096, 4097), "h200", {"bk": 64, "stages": 2, "wm": 128, "wn": 128}),
        ("registers", LARGE, "h200", {"blocks": 2}),
        ("registers", LARGE, "h200", {"wm": 128, "wn": 128}),
        ("fragment_buffers", LARGE, "h200", {"bk": 16}),
        ("asynchronous_copies", Gemm(4096, 4097, 4097), "h200", {}),
        ("asynchronous_copies", Gemm(4096, 4096, 4096, dtype="fp16"), "t4", {}),
        ("pipeline_depth", Gemm(4096, 4096, 64), "h200", {}),
        ("split_k", Gemm(128, 256, 64), "h200", {"splits": 4, "stages": 2}),
        ("split_work", Gemm(8192, 8192, 4096), "h200", {"splits": 2}),
        ("raster", Gemm(256, 4096, 4096), "h200", {"group": 16}),
    ],
)
def test_each_rule_rejects_what_it_is_there_for(
    constraint: str, problem: Gemm, name: str, knobs: dict[str, int | str]
) -> None:
    reasons = MMA.why_invalid(problem, changed(**knobs), gpu(name))
    assert constraint in [r.partition(":")[0] for r in reasons]
    assert all("{" not in r for r in reasons)


def test_every_rule_has_a_case_above() -> None:
    marks = test_each_rule_rejects_what_it_is_there_for.pytestmark  # type: ignore[attr-defined]
    assert {case[0] for case in marks[0].args[1]} == {c.name for c in MMA.constraints}


def test_knobs_without_effect_have_one_value() -> None:
    knobs = {p.name: p.values for p in MMA.parameters(Gemm(64, 64, 64, dtype="tf32", layout="tn"), gpu("h200"))}
    assert knobs["ldmatrix"] == (0,)


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (LARGE, "h200"),
        (Gemm(4096, 4096, 4096, dtype="tf32", layout="tn"), "a100"),
        (Gemm(16, 4096, 4096), "h200"),
        (Gemm(1000, 1000, 1000, dtype="fp16"), "t4"),
        (Gemm(3, 5, 7), "h200"),
    ],
)
def test_starting_points_are_distinct_members_of_the_space(problem: Gemm, name: str) -> None:
    space = Space(problem, gpu(name), [MMA])
    points = [space.index(c) for c in MMA.starting_points(problem, gpu(name))]
    assert len(set(points)) == len(points)
    assert bool(points) == (problem.m > 3)


def members(problem: Gemm, name: str, count: int) -> list[Configuration]:
    space = Space(problem, gpu(name), [MMA])
    return [space[int(i)] for i in np.random.default_rng(7).integers(len(space), size=count)]


@pytest.mark.parametrize(
    "problem",
    [Gemm(1000, 1001, 999), Gemm(520, 264, 4096, dtype="tf32", layout="tt"), Gemm(64, 2048, 2048, dtype="fp16")],
)
def test_a_plan_is_plain_data_that_says_what_the_kernel_needs(problem: Gemm) -> None:
    h200 = gpu("h200")
    for c in members(problem, "h200", 40):
        recipe = render(problem, c, MMA).recipe
        assert LaunchRecipe.from_json(recipe.to_json()) == recipe
        assert recipe.dynamic_shared <= h200.shared_per_block
        env = problem.environment() | {f"ptr_{name}": 256 for name in "abd"}
        assert recipe.unmet(env) is None
        x, y, z = recipe.grid_size(env)
        assert (y, z) == (1, c["splits"])
        assert (x - 1) < -(-problem.m // c.integer("bm")) * -(-problem.n // c.integer("bn")) <= x
        partial = 4 * x * z * c.integer("bm") * c.integer("bn") if z > 1 else 0
        assert expression(recipe.workspace)(env) == partial
        assert expression(recipe.counters)(env) == (4 * x if z > 1 else 0)
        costs = estimate(problem, c, MMA, h200)
        assert costs.floor_us < costs.us < float("inf")


def test_vectors_follow_the_pitches_and_become_preconditions() -> None:
    recipe = render(Gemm(256, 256, 1028), BASE, MMA).recipe  # 1028 bf16 = 8 bytes past a multiple of 16
    env = Gemm(256, 256, 1028).environment() | {"ptr_a": 4096, "ptr_b": 4096, "ptr_d": 4096}
    assert recipe.unmet(env) is None
    assert "address of a is not a multiple of 8 bytes" in (recipe.unmet(env | {"ptr_a": 4100}) or "")
    assert "leading dimension of b" in (recipe.unmet(env | {"ldb": 1030}) or "")
    assert "32-bit row offsets" in (recipe.unmet(env | {"lda": 2**24}) or "")
    assert "k is compiled in as 1028" in (recipe.unmet(env | {"k": 1024}) or "")


def test_problems_that_differ_in_m_share_a_source() -> None:
    assert render(Gemm(4096, 512, 512), BASE, MMA).text == render(Gemm(100, 512, 512), BASE, MMA).text


def test_the_large_problem_has_a_large_space() -> None:
    space = Space(LARGE, gpu("h200"), [MMA])
    assert len(space) > 500_000
    assert space[space.index(BASE)] == BASE
