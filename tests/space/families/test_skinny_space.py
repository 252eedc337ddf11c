"""The skinny family's rules, plans, starting points and sentences."""

from __future__ import annotations

import numpy as np
import pytest

from gemmtune.codegen.render import render
from gemmtune.space.configuration import Configuration
from gemmtune.space.estimate import estimate
from gemmtune.space.expression import expression
from gemmtune.space.families import families_for
from gemmtune.space.families.skinny import Skinny
from gemmtune.space.gemm import LAYOUTS, Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.recipe import LaunchRecipe
from gemmtune.space.space import Space

SKINNY = Skinny()
FMA = Configuration.parse(
    "skinny core=fma bm=1 tn=2 lanes_k=32 vec=8 depth=4 warps_n=1 warps_k=4 splits=1 activations=cache hint=first "
    "blocks=2"
)
MMA = Configuration.parse(
    "skinny core=mma bm=16 tn=2 lanes_k=4 vec=8 depth=4 warps_n=4 warps_k=2 splits=4 activations=cache hint=first "
    "blocks=2"
)
ONE, SIXTEEN = Gemm(1, 4096, 4096), Gemm(16, 4096, 4096)


@pytest.mark.parametrize(
    ("problem", "name", "part"),
    [
        (Gemm(16, 64, 64, dtype="tf32"), "h200", "has no tf32"),
        (Gemm(65, 64, 64), "h200", "at most 64 rows, but M is 65"),
        (Gemm(17, 64, 64, dtype="fp32"), "h200", "more than 16 rows on tensor cores alone"),
        (Gemm(17, 4096, 4095), "h200", "multiples of 16 bytes"),
        (Gemm(17, 64, 64), "t4", "bf16 from compute capability 8.0"),
        (Gemm(1, 64, 64, dtype="fp16"), "v100", "needs compute capability 7.5"),
    ],
)
def test_what_it_cannot_serve_has_a_reason(problem: Gemm, name: str, part: str) -> None:
    assert part in (SKINNY.unsupported(problem, gpu(name)) or "")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "m", "name"), [("bf16", 64, "h200"), ("fp16", 16, "t4"), ("fp32", 1, "l4")])
def test_it_serves_its_types_in_every_layout(dtype: str, m: int, name: str, layout: str) -> None:
    problem = Gemm(m, 1024, 1000, dtype=dtype, layout=layout)
    assert len(Space(problem, gpu(name), [SKINNY])) > 1000
    assert "skinny" in [f.name for f in families_for(problem, gpu(name))]


@pytest.mark.parametrize(
    ("constraint", "problem", "base", "name", "knobs"),
    [
        ("tile_rows", Gemm(3, 4096, 4096), FMA, "h200", {"bm": 8}),
        ("fragment", SIXTEEN, MMA, "h200", {"lanes_k": 8}),
        ("fragment", SIXTEEN, MMA, "h200", {"vec": 4}),
        ("contiguous_loads", ONE, FMA, "h200", {"lanes_k": 2}),
        ("contiguous_loads", Gemm(1, 4096, 4096, layout="nn"), FMA, "h200", {"lanes_k": 32, "tn": 1}),
        ("tile_columns", Gemm(16, 32, 4096), MMA, "h200", {}),
        ("threads", SIXTEEN, MMA, "h200", {"warps_n": 8, "warps_k": 16}),
        ("shared_memory", Gemm(16, 4096, 65536), MMA, "h200", {"activations": "shared", "splits": 1}),
        ("registers", SIXTEEN, MMA, "h200", {"blocks": 4}),
        ("code_size", Gemm(16, 4096, 65536), FMA, "h200", {"bm": 16, "tn": 4, "depth": 12}),
        ("ring_depth", ONE, FMA, "h200", {"depth": 8}),
        ("idle_warps", Gemm(1, 4096, 512), FMA, "h200", {}),
        ("split_k", Gemm(1, 4096, 512), FMA, "h200", {"splits": 3}),
        ("split_work", Gemm(16, 65536, 4096), MMA, "h200", {"splits": 4}),
        ("hint", Gemm(16, 4096, 4096, dtype="fp16"), MMA, "t4", {}),
    ],
)
def test_each_rule_rejects_what_it_is_there_for(
    constraint: str, problem: Gemm, base: Configuration, name: str, knobs: dict[str, int | str]
) -> None:
    reasons = SKINNY.why_invalid(problem, Configuration.of("skinny", {**base, **knobs}), gpu(name))
    assert constraint in [r.partition(":")[0] for r in reasons]
    assert all("{" not in r for r in reasons)


def test_every_rule_has_a_case_above() -> None:
    marks = test_each_rule_rejects_what_it_is_there_for.pytestmark  # type: ignore[attr-defined]
    assert {case[0] for case in marks[0].args[1]} == {c.name for c in SKINNY.constraints}


def test_knobs_have_the_few_values_that_fit_the_problem() -> None:
    def knobs(problem: Gemm) -> dict[str, tuple[int | str, ...]]:
        return {p.name: p.values for p in SKINNY.parameters(problem, gpu("h200"))}

    assert knobs(SIXTEEN)["bm"] == (16,)
    assert knobs(Gemm(3, 64, 64))["bm"] == (4, 8)
    assert knobs(Gemm(33, 64, 64)) | {"core": ("mma",), "bm": (40,)} == knobs(Gemm(33, 64, 64))
    assert knobs(Gemm(4, 64, 4097)) | {"core": ("fma",), "vec": (1,)} == knobs(Gemm(4, 64, 4097))
    assert knobs(Gemm(4, 64, 64, ldb=68))["vec"] == (2, 4)
    assert knobs(Gemm(4, 64, 64, dtype="fp32"))["vec"] == (2, 4)


@pytest.mark.parametrize("m", [1, 4, 16, 64])
@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (28672, 8192), (8192, 28672), (2112, 7168), (50257 // 8 * 8, 768)])
def test_starting_points_are_distinct_members_of_the_space(m: int, layout: str, n: int, k: int) -> None:
    problem = Gemm(m, n, k, layout=layout)
    space = Space(problem, gpu("h200"), [SKINNY])
    points = SKINNY.starting_points(problem, gpu("h200"))
    assert len({space.index(c) for c in points}) == len(points) > 0
    assert points[0]["core"] == ("fma" if m <= 4 else "mma")


def test_older_cards_start_somewhere_too() -> None:
    problem = Gemm(8, 4096, 4096, dtype="fp16")
    assert {c["hint"] for c in SKINNY.starting_points(problem, gpu("t4"))} == {"stream"}


@pytest.mark.parametrize(
    "problem", [Gemm(1, 1001, 999), Gemm(16, 264, 4096, layout="tn"), Gemm(64, 2048, 2048, dtype="fp16")]
)
def test_a_plan_is_plain_data_that_says_what_the_kernel_needs(problem: Gemm) -> None:
    h200, space = gpu("h200"), Space(problem, gpu("h200"), [SKINNY])
    for i in np.random.default_rng(7).integers(len(space), size=40):
        c = space[int(i)]
        recipe = render(problem, c, SKINNY).recipe
        assert LaunchRecipe.from_json(recipe.to_json()) == recipe
        assert recipe.dynamic_shared <= h200.shared_per_block
        env = problem.environment() | {f"ptr_{name}": 256 for name in "abd"}
        assert recipe.unmet(env) is None
        x, y, z = recipe.grid_size(env)
        assert (y, z) == (1, c["splits"])
        assert x * recipe.tile.columns >= problem.n > (x - 1) * recipe.tile.columns
        partial = 4 * x * z * recipe.tile.rows * recipe.tile.columns if z > 1 else 0
        assert expression(recipe.workspace)(env) == partial
        assert expression(recipe.counters)(env) == (4 * x if z > 1 else 0)
        costs = estimate(problem, c, SKINNY, h200)
        assert costs.floor_us < costs.us < float("inf")


def test_vectors_follow_the_pitches_and_become_preconditions() -> None:
    recipe = render(SIXTEEN, MMA, SKINNY).recipe
    env = SIXTEEN.environment() | {"ptr_a": 4096, "ptr_b": 4096, "ptr_d": 4096}
    assert recipe.unmet(env) is None
    assert recipe.unmet(env | {"m": 3, "ptr_d": 4098}) is None
    assert "address of a is not a multiple of 16 bytes" in (recipe.unmet(env | {"ptr_a": 4104}) or "")
    assert "leading dimension of b" in (recipe.unmet(env | {"ldb": 4100}) or "")
    assert "k is compiled in as 4096" in (recipe.unmet(env | {"k": 1024}) or "")


def test_problems_that_differ_in_m_share_a_source() -> None:
    assert render(SIXTEEN, MMA, SKINNY).text == render(Gemm(9, 4096, 4096), MMA, SKINNY).text


def test_the_estimate_prefers_more_bytes_in_flight_and_splits_where_blocks_are_few() -> None:
    def us(problem: Gemm, base: Configuration, **knobs: int | str) -> float:
        return estimate(problem, Configuration.of("skinny", {**base, **knobs}), SKINNY, gpu("h200")).us

    assert us(SIXTEEN, MMA, depth=4) < us(SIXTEEN, MMA, depth=1)
    assert us(SIXTEEN, MMA, splits=4) < us(SIXTEEN, MMA, splits=1)
