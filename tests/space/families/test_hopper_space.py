"""The hopper family's rules, plans and sentences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gemmtune.codegen.render import render
from gemmtune.space.configuration import Configuration
from gemmtune.space.estimate import estimate
from gemmtune.space.expression import expression
from gemmtune.space.families import families_for, family
from gemmtune.space.gemm import LAYOUTS, Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.recipe import LaunchRecipe
from gemmtune.space.space import Space

HOPPER = family("hopper")
H200 = gpu("h200")
BASE = Configuration.parse(
    "hopper bm=128 bn=256 bk=64 stages=4 warpgroups=2 schedule=cooperative cluster=1x1 raster=rows group=8 splits=1 "
    "stream=0 swap=0 hints=none store=tma producer=24 persistent=1 programmatic=0 blocks=1"
)
LARGE = Gemm(4096, 4096, 4096)
DECODE = Gemm(64, 2112, 7168)


def changed(**knobs: int | str) -> Configuration:
    return Configuration.of("hopper", {**BASE, **knobs})


@pytest.mark.parametrize(
    ("problem", "name", "part"),
    [
        (Gemm(64, 64, 64, dtype="fp32"), "h200", "use family simt, or dtype tf32"),
        (Gemm(64, 64, 64), "a100", "needs compute capability 9.0"),
        (Gemm(64, 64, 64), "b200", "compute capability 9.0 alone"),
        (Gemm(64, 64, 64, dtype="bf16", b_dtype="fp16"), "h200", "convert one of them"),
        (Gemm(64, 64, 64, dtype="tf32", layout="tn"), "h200", "use mma"),
        (Gemm(64, 64, 65), "h200", "rows a multiple of 16 bytes apart, but those of a are 130 apart"),
        (Gemm(64, 68, 64, layout="nn"), "h200", "those of b are 136 apart: pad its leading dimension, or use mma"),
    ],
)
def test_what_it_cannot_serve_has_a_reason(problem: Gemm, name: str, part: str) -> None:
    assert part in (HOPPER.unsupported(problem, gpu(name)) or "")


def test_problems_that_tma_cannot_load_go_to_the_other_tensor_core_family() -> None:
    names = [f.name for f in families_for(Gemm(1000, 1001, 999), H200)]
    assert "hopper" not in names
    assert "mma" in names


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_serves_sixteen_bit_types_in_every_layout(dtype: str, layout: str) -> None:
    problem = Gemm(1000, 1000, 1000, dtype=dtype, layout=layout)
    assert len(Space(problem, H200, [HOPPER])) > 10_000


def test_it_serves_tf32_with_k_contiguous() -> None:
    assert len(Space(Gemm(1000, 1000, 1000, dtype="tf32"), H200, [HOPPER])) > 10_000


@pytest.mark.parametrize(
    ("constraint", "problem", "knobs"),
    [
        ("warpgroup_tiling", LARGE, {"warpgroups": 3}),
        ("pingpong", LARGE, {"schedule": "pingpong", "persistent": 0}),
        ("pingpong", LARGE, {"schedule": "pingpong", "warpgroups": 3, "bm": 192}),
        ("tile_size", Gemm(64, 4096, 4096), {}),
        ("tile_size", Gemm(4096, 64, 4096), {}),
        ("tile_size", Gemm(4096, 4096, 64), {"bk": 128, "stages": 2}),
        ("tile_work", LARGE, {"bm": 64, "bn": 8, "warpgroups": 1}),
        ("registers", LARGE, {"bm": 256}),
        ("registers", LARGE, {"bm": 128, "schedule": "pingpong"}),
        ("instruction_registers", LARGE, {"bm": 192, "warpgroups": 3}),
        ("reallocation", LARGE, {"warpgroups": 1, "bm": 64, "producer": 40}),
        ("shared_memory", LARGE, {"stages": 5}),
        ("shared_memory", LARGE, {"blocks": 2}),
        ("pipeline_depth", LARGE, {"bm": 64, "warpgroups": 1, "stages": 2}),
        ("pipeline_depth", Gemm(4096, 4096, 128), {"persistent": 0}),
        ("cluster", Gemm(128, 4096, 4096), {"cluster": "2x1"}),
        ("cluster", Gemm(4096, 256, 4096), {"cluster": "1x2"}),
        ("cluster", Gemm(300, 4096, 4096), {"cluster": "4x2", "bn": 64}),
        ("cluster", Gemm(4096, 512, 4096), {"cluster": "2x4"}),
        ("cluster_size", LARGE, {"cluster": "1x4"}),
        ("cluster_size", Gemm(128, 24576, 1536), {"cluster": "1x2x2", "bn": 64}),
        ("cluster_k", DECODE, {"cluster": "1x1x2", "persistent": 1, "store": "direct"}),
        ("cluster_k", DECODE, {"cluster": "1x1x2", "persistent": 0}),
        ("cluster_k", DECODE, {"cluster": "1x1x2", "persistent": 0, "store": "direct", "splits": 2}),
        ("cluster_k", LARGE, {"cluster": "1x1x4", "store": "direct", "schedule": "pingpong"}),
        ("cluster_k_depth", Gemm(64, 2112, 448), {"cluster": "1x1x4", "persistent": 0, "store": "direct"}),
        ("cluster_k_work", LARGE, {"cluster": "1x1x2", "persistent": 0, "store": "direct"}),
        ("cluster_k_room", DECODE, {"cluster": "1x1x2", "persistent": 0, "store": "direct", "stages": 2}),
        ("occupancy", LARGE, {"blocks": 2, "schedule": "pingpong"}),
        ("store", Gemm(4096, 4092, 4096), {}),
        ("store", LARGE, {"bn": 200}),
        ("store", Gemm(64, 2112, 7168, out_dtype="fp32"), {"swap": 1, "bn": 64}),
        ("store_row", Gemm(4096, 4092, 4096, ldd=4104), {}),
        ("store_row", Gemm(64, 2116, 7168, ldd=2120), {"swap": 1, "bn": 64}),
        ("store_row", Gemm(4096, 4094, 4096, ldd=4096, out_dtype="fp32"), {}),
        ("raster", Gemm(256, 4096, 4096), {}),
        ("raster", Gemm(128, 4096, 4096), {"raster": "columns"}),
        ("split_k", Gemm(128, 256, 128), {"splits": 2}),
        ("split_work", LARGE, {"splits": 2}),
        ("stream_k", LARGE, {"stream": 1, "persistent": 0}),
        ("stream_k", Gemm(4096, 4096, 256), {"stream": 1}),
        ("persistent", Gemm(128, 4096, 4096), {}),
        ("hints", LARGE, {"hints": "stream_b"}),
        ("hints", LARGE, {"hints": "stream_a"}),
    ],
)
def test_each_rule_rejects_what_it_is_there_for(constraint: str, problem: Gemm, knobs: dict[str, int | str]) -> None:
    reasons = HOPPER.why_invalid(problem, changed(**knobs), H200)
    assert constraint in [r.partition(":")[0] for r in reasons]
    assert all("{" not in r and "?" not in r for r in reasons)


def test_tma_stores_no_row_that_ends_within_sixteen_bytes() -> None:
    def reasons(problem: Gemm, store: str) -> list[str]:
        return [r for r in HOPPER.why_invalid(problem, changed(store=store), H200) if r.startswith("store")]

    view = Gemm(4096, 4092, 4096, ldd=4104)
    assert reasons(view, "tma") == [
        "store_row: store=tma writes whole 16 bytes, and a row of 4092 columns of 2 bytes is no multiple of that: what "
        "lies beside D would be overwritten, so use store=shared or store=direct"
    ]
    assert reasons(view, "shared") == reasons(view, "direct") == []
    assert reasons(replace(view, out_dtype="fp32"), "tma") == []  # 4092 columns of 4 bytes
    assert reasons(Gemm(4096, 4088, 4096, ldd=4104), "tma") == []
    stores = [c["store"] for c in HOPPER.starting_points(view, H200)]
    assert len(stores) >= 5
    assert "tma" not in stores


def test_every_rule_has_a_case_above() -> None:
    marks = test_each_rule_rejects_what_it_is_there_for.pytestmark  # type: ignore[attr-defined]
    assert {case[0] for case in marks[0].args[1]} == {c.name for c in HOPPER.constraints}


def test_every_value_of_every_knob_is_somewhere_valid() -> None:
    seen: dict[str, set[int | str]] = {}
    sizes = [
        (4096, 4096, 4096),
        (64, 2112, 7168),
        (16, 4096, 4096),
        (4096, 128, 7168),
        (1000, 1000, 1000),
        (96, 1536, 2048),
    ]
    for problem in (Gemm(*size) for size in sizes):
        space = Space(problem, H200, [HOPPER])
        for i in np.random.default_rng(0).integers(len(space), size=1500):
            for name, value in space[int(i)].items():
                seen.setdefault(name, set()).add(value)
    for parameter in HOPPER.parameters(DECODE, H200):
        assert seen[parameter.name] == set(parameter.values), parameter.name


@pytest.mark.parametrize(
    "problem",
    [LARGE, DECODE, Gemm(16, 4096, 4096), Gemm(4096, 4096, 4096, dtype="tf32"), Gemm(1000, 1000, 1000, layout="tn")],
)
def test_starting_points_are_distinct_members_of_the_space(problem: Gemm) -> None:
    space = Space(problem, H200, [HOPPER])
    points = [space.index(c) for c in HOPPER.starting_points(problem, H200)]
    assert len(set(points)) == len(points) >= 5


def test_starting_points_of_a_small_m_include_swapped_operands() -> None:
    assert any(c["swap"] == 1 and c["splits"] != 1 for c in HOPPER.starting_points(DECODE, H200))
    assert all(c["swap"] == 0 for c in HOPPER.starting_points(LARGE, H200))


@pytest.mark.parametrize(
    ("problem", "wanted"),
    [
        (Gemm(128, 7168, 4096), {("1x1x2", 0, 128, 112), ("1x1x2", 1, 128, 128), ("1x1x4", 0, 128, 224)}),
        (Gemm(128, 2112, 7168), {("1x1x4", 0, 128, 72)}),
        (DECODE, {("1x1x4", 0, 64, 72), ("1x1x4", 1, 128, 64)}),
        (Gemm(16, 4096, 4096), {("1x1x4", 1, 128, 16)}),
    ],
)
def test_few_rows_begin_with_clusters_that_fill_the_gpu_once(problem: Gemm, wanted: set[tuple[int | str, ...]]) -> None:
    first = HOPPER.starting_points(problem, H200)[:6]
    assert wanted <= {(c["cluster"], c["swap"], c["bm"], c["bn"]) for c in first}
    for c in first[:3]:
        v = HOPPER.bind(problem, c, H200)
        assert 0.6 * H200.sms < v["tiles"] * v["ck"] <= H200.sms


def test_tiles_enough_for_every_sm_begin_with_none_whose_k_is_shared() -> None:
    for problem in (Gemm(128, 24576, 1536), Gemm(1024, 4096, 1024), LARGE):
        assert all(HOPPER.bind(problem, c, H200)["ck"] == 1 for c in HOPPER.starting_points(problem, H200))


def test_few_tiles_of_many_rows_begin_with_clusters_that_share_k() -> None:
    first = HOPPER.starting_points(Gemm(1024, 1024, 4096), H200)[:5]
    assert {c["cluster"] for c in first} == {"1x1x2", "1x1x4", "1x1x8", "1x2x4", "1x2x2"}


def test_few_rows_begin_with_neighbours_that_load_them_together_too() -> None:
    points = HOPPER.starting_points(Gemm(128, 7168, 2048), H200)
    sharing = {(c["cluster"], c["swap"]) for c in points if c["cluster"] != "1x1"}
    assert {("1x2x4", 0), ("1x2x2", 0), ("1x2", 0), ("1x4", 0), ("2x1", 1), ("4x1", 1)} <= sharing


def test_a_cluster_adds_up_without_a_workspace() -> None:
    configuration = changed(cluster="1x1x4", bn=112, stages=6, store="direct", persistent=0, group=1)
    problem = Gemm(128, 7168, 4096)
    recipe = render(problem, configuration, HOPPER).recipe
    assert recipe.cluster == (4, 1, 1)
    assert (recipe.grid_size(problem.environment()), recipe.workspace, recipe.counters) == ((256, 1, 1), "0", "0")
    through_l2 = changed(cluster="1x1", splits=4, bn=112, stages=6, store="direct", persistent=0, group=1)
    traits = [HOPPER.traits(problem, c, H200) for c in (configuration, through_l2)]
    assert [(t.splits, t.gathered) for t in traits] == [(4, 4), (4, 1)]
    costs = [estimate(problem, c, HOPPER, H200) for c in (configuration, through_l2)]
    assert costs[0].blocks == costs[1].blocks
    assert costs[0].us < costs[1].us
    assert costs[0].l2_us < costs[1].l2_us


def members(problem: Gemm, count: int) -> list[Configuration]:
    space = Space(problem, H200, [HOPPER])
    return [space[int(i)] for i in np.random.default_rng(7).integers(len(space), size=count)]


@pytest.mark.parametrize(
    "problem", [Gemm(1000, 1000, 1000), Gemm(520, 264, 4096, dtype="tf32"), Gemm(64, 2048, 2048, layout="nn"), DECODE]
)
def test_a_plan_is_plain_data_that_says_what_the_kernel_needs(problem: Gemm) -> None:
    for c in members(problem, 60):
        recipe = render(problem, c, HOPPER).recipe
        assert LaunchRecipe.from_json(recipe.to_json()) == recipe
        assert recipe.dynamic_shared <= H200.shared_per_block
        env = problem.environment() | {f"ptr_{name}": 256 for name in "abd"} | {"sms": H200.sms}
        assert recipe.unmet(env) is None
        for argument in recipe.arguments:
            if argument.map is not None:
                assert argument.map.bind(env).box_bytes <= 32768
        x, y, z = recipe.grid_size(env)
        cluster = recipe.cluster[0]
        assert (y, z) == (1, 1)
        assert x % cluster == 0
        pieces = cluster * int(HOPPER.bind(problem, c, H200)["tiles"]) * c.integer("splits")
        fitting = H200.sms * c.integer("blocks") // cluster * cluster
        if c["stream"]:
            assert x <= fitting
        else:
            assert x == (min(pieces, fitting) if c["persistent"] else pieces)
        shares = c["splits"] != 1 or c["stream"] == 1
        assert (expression(recipe.workspace)(env) > 0) == shares
        assert (expression(recipe.counters)(env) > 0) == shares
        costs = estimate(problem, c, HOPPER, H200)
        assert costs.floor_us < costs.us < float("inf")


@pytest.mark.parametrize("problem", [Gemm(1000, 1000, 1000), DECODE])
def test_pieces_cover_every_tile_as_often_as_k_is_split(problem: Gemm) -> None:
    for c in members(problem, 60):
        v = HOPPER.bind(problem, c, H200)
        tile = render(problem, c, HOPPER).recipe.tile
        env = problem.environment()
        pieces = v["tiles"] * v["cluster_blocks"] * v["splits"]
        ids = {"bx": np.arange(pieces, dtype=np.int64)}
        row, column = (expression(text).on_arrays({**env, **ids})[0] for text in (tile.row, tile.column))
        inside = (row < problem.m) & (column < problem.n)
        origins, counts = np.unique(np.stack([row, column])[:, inside], axis=1, return_counts=True)
        assert origins.shape[1] == -(-problem.m // tile.rows) * -(-problem.n // tile.columns)
        assert set(counts) == {v["splits"] * v["ck"]}
        assert (origins % np.array([[tile.rows], [tile.columns]]) == 0).all()


def test_alignment_becomes_a_precondition() -> None:
    recipe = render(LARGE, BASE, HOPPER).recipe
    env = LARGE.environment() | {"ptr_a": 4096, "ptr_b": 4096, "ptr_d": 4096, "sms": 132}
    assert recipe.unmet(env) is None
    assert "address of a is not a multiple of 16 bytes" in (recipe.unmet(env | {"ptr_a": 4104}) or "")
    assert "leading dimension of b" in (recipe.unmet(env | {"ldb": 4100}) or "")
    assert "address of d" in (recipe.unmet(env | {"ptr_d": 4104}) or "")
    assert "k is compiled in as 4096" in (recipe.unmet(env | {"k": 1024}) or "")


def test_problems_that_differ_in_m_share_a_source() -> None:
    assert render(LARGE, BASE, HOPPER).text == render(Gemm(100, 4096, 4096), BASE, HOPPER).text


def test_dependent_launches_are_a_family_that_is_asked_for() -> None:
    programmatic = family("hopper_programmatic")
    assert programmatic not in families_for(LARGE, H200)
    assert families_for(LARGE, H200, ["hopper_programmatic"]) == [programmatic]
    configuration = Configuration.of("hopper_programmatic", {**BASE, "programmatic": 1})
    source = render(LARGE, configuration)
    assert source.recipe.programmatic
    assert "grid_dependency_wait" in source.text
    assert not render(LARGE, BASE, HOPPER).recipe.programmatic
    assert "grid_dependency" not in render(LARGE, BASE, HOPPER).text


def test_a_persistent_grid_goes_by_the_device() -> None:
    recipe = render(LARGE, BASE, HOPPER).recipe
    for sms in (132, 114, 10):
        assert recipe.grid_size(LARGE.environment() | {"sms": sms})[0] == sms
    paired = render(LARGE, changed(cluster="2x1"), HOPPER).recipe
    assert paired.grid_size(LARGE.environment() | {"sms": 131})[0] == 130


def test_the_space_is_large_and_fast_to_number() -> None:
    space = Space(LARGE, H200, [HOPPER])
    assert 100_000 < len(space) < 1_000_000
    assert space[space.index(BASE)] == BASE
    assert BASE not in Space(LARGE, replace(H200, sms=1000), [HOPPER])  # fewer tiles than SMs
