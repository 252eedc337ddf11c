"""The rules of the simt family: what is valid renders and tiles the output, what is not is told in a sentence."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.codegen.render import render
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ConfigurationError, UnsupportedError
from gemmtune.space.expression import expression
from gemmtune.space.families import families_for, family, gemm_recipe
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import TABLE, gpu
from gemmtune.space.problem import Problem
from gemmtune.space.space import Space

SIMT = family("simt")
H200 = gpu("h200")
SGEMM = Gemm(4096, 4096, 4096, "fp32")
GOOD = Configuration.parse(
    "simt bm=128 bn=128 bk=8 tm=8 tn=8 lanes_m=4 vec_a=4 vec_b=4 pad=4 unroll=8 buffers=2 min_blocks=2 group=8"
)


def but(**values: Any) -> Configuration:
    return Configuration.of("simt", {**GOOD, **values})


# ------------------------------------------------------------------------------------------------------------- rules


def test_the_classic_sgemm_is_valid() -> None:
    assert SIMT.why_invalid(SGEMM, GOOD, H200) == []


@pytest.mark.parametrize(
    ("name", "problem", "configuration", "words"),
    [
        ("warp_tiling", SGEMM, but(bm=32, tm=16), "a warp of 4 x 8 lanes with 16 x 8 outputs"),
        ("threads", SGEMM, but(bm=256, bn=256, tm=2, tn=2), "2 blocks of 16384 threads"),
        ("tile_size", replace(SGEMM, m=60), GOOD, "128 x 128 x 8 is at least twice the problem's 60 x 4096 x 4096"),
        ("vector_alignment", replace(SGEMM, k=4095), GOOD, "4095 and 4095 keep rows aligned to 1 and 1 elements"),
        ("load_division", SGEMM, but(bm=16, tm=2, lanes_m=8), "128 threads with loads of 4 (A) and 4 (B) elements"),
        ("load_count", SGEMM, but(bm=256, bn=32, bk=32, tm=16, lanes_m=16, vec_a=1), "in 128 (A) and 4 (B) loads"),
        ("unroll", SGEMM, but(unroll=16), "a k loop of 8 steps is not unrolled evenly by 16"),
        ("shared_memory", SGEMM, but(bk=32, bm=256, bn=256, tm=16, tn=16), "2 blocks need 133120 bytes"),
        ("registers", SGEMM, but(min_blocks=3), "take about 112 registers, but 3 blocks of 256 threads leave 80 each"),
        ("occupancy", SGEMM, but(bm=64, bn=64, tm=8, tn=8, min_blocks=2), "min_blocks=1 asks for the same"),
        ("raster", replace(SGEMM, m=512), GOOD, "8 tile rows were to be walked together, but 512 rows make fewer"),
        ("bank_layout", SGEMM, but(bk=32, vec_a=4, vec_b=4, pad=8, unroll=8), "would meet 8 (A) and 8 (B) at a time"),
    ],
    ids=lambda v: v if isinstance(v, str) and v.isidentifier() else None,
)
def test_each_rule_says_what_is_wrong_with_its_values(
    name: str, problem: Gemm, configuration: Configuration, words: str
) -> None:
    reasons = {r.partition(": ")[0]: r for r in SIMT.why_invalid(problem, configuration, H200)}
    assert words in reasons[name]


def test_every_rule_is_covered_above() -> None:
    assert {c.name for c in SIMT.constraints} == {
        mark.args[1][i][0]
        for mark in test_each_rule_says_what_is_wrong_with_its_values.pytestmark  # type: ignore[attr-defined]
        for i in range(len(mark.args[1]))
    }


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(TABLE)), layout=st.sampled_from(["nt", "nn", "tn", "tt"]))
def test_every_sentence_formats_whatever_the_knobs(data: st.DataObject, name: str, layout: str) -> None:
    problem = Gemm(300, 77, 1000, "fp16", layout=layout)
    values = {p.name: data.draw(st.sampled_from(p.values), p.name) for p in SIMT.parameters(problem, TABLE[name])}
    env = SIMT.bind(problem, values, TABLE[name])
    for constraint in SIMT.constraints:
        sentence = constraint.explain(env)
        assert not re.search(r"[{}]", sentence)


def test_tf32_is_not_served_and_a_way_out_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"simt multiplies in full fp32.*ask for family mma"):
        families_for(Gemm(64, 64, 64, "tf32"), H200, ["simt"])


@pytest.mark.parametrize("name", sorted(TABLE))
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_every_gpu_of_the_table_is_served(name: str, dtype: str) -> None:
    assert len(Space(Gemm(64, 48, 64, dtype), TABLE[name], [SIMT])) > 100


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 4096, 4096), (5, 3, 7), (4096, 1, 1)])
def test_no_size_is_too_small(shape: tuple[int, int, int]) -> None:
    assert len(Space(Gemm(*shape, "fp32"), H200, [SIMT])) > 0


def test_padding_is_a_knob_only_where_something_is_transposed() -> None:
    knobs = {
        layout: {p.name: p for p in SIMT.parameters(replace(SGEMM, layout=layout), H200)} for layout in ("nt", "tn")
    }
    assert knobs["nt"]["pad"].values == (0, 4, 8)
    assert knobs["tn"]["pad"].values == (0,)


# ------------------------------------------------------------------------------------------------- launch, cost model


def samples(problem: Gemm, count: int) -> Iterator[Configuration]:
    space = Space(problem, H200, [SIMT])
    rng = random.Random(7)
    for _ in range(count):
        yield space[rng.randrange(len(space))]


@pytest.mark.parametrize("problem", [SGEMM, Gemm(1000, 1000, 1000, "bf16", layout="tn")], ids=lambda p: p.layout)
def test_recipe_and_traits_agree_with_the_rules(problem: Gemm) -> None:
    for configuration in samples(problem, 40):
        env = SIMT.bind(problem, configuration, H200)
        recipe = SIMT.plan(problem, configuration)
        assert recipe.threads == env["threads"] == env["warps_m"] * env["warps_n"] * 32
        assert recipe.dynamic_shared == env["shared"] <= H200.shared_per_block
        traits = SIMT.traits(problem, configuration, H200)
        assert 0 < traits.efficiency < 1
        assert (traits.tile_m, traits.tile_n) == (recipe.tile.rows, recipe.tile.columns)
        assert traits.padded_k % traits.tile_k == 0
        assert traits.padded_k >= problem.k


def test_wide_loads_ask_for_alignment_and_single_ones_for_none() -> None:
    wide = SIMT.plan(SGEMM, GOOD)
    env = {**SGEMM.environment(), "ptr_a": 4096, "ptr_b": 4096, "ptr_d": 4096}
    assert wide.unmet(env) is None
    assert "address of a" in str(wide.unmet({**env, "ptr_a": 4100}))
    assert "leading dimension of b" in str(wide.unmet({**env, "ldb": 4097}))
    assert "address of d" in str(wide.unmet({**env, "ptr_d": 4104}))
    odd = replace(SGEMM, ldd=4097)
    single = SIMT.plan(odd, but(vec_a=1, vec_b=1))
    assert single.unmet({**odd.environment(), "ptr_a": 4, "ptr_b": 8, "ptr_d": 12}) is None


@settings(max_examples=150, deadline=None)
@given(
    m=st.integers(1, 700), n=st.integers(1, 700), bm=st.sampled_from([16, 96, 128]), bn=st.sampled_from([16, 160, 256]),
    group=st.sampled_from([1, 4, 8, 16]),
)  # fmt: skip
def test_tiles_cover_the_output_once(m: int, n: int, bm: int, bn: int, group: int) -> None:
    tile = gemm_recipe.tile(bm, bn, group)
    x, y, z = (expression(g)({"m": m, "n": n}) for g in gemm_recipe.grid(bm, bn))
    assert (y, z) == (1, 1)
    origins = Counter(
        (expression(tile.row)(env), expression(tile.column)(env))
        for env in ({"m": m, "n": n, "bx": b} for b in range(x))
    )
    assert origins == Counter((r, c) for r in range(0, m, bm) for c in range(0, n, bn))


def test_a_raster_group_walks_its_rows_before_the_next_column() -> None:
    tile = gemm_recipe.tile(16, 16, 4)
    env = {"m": 6 * 16, "n": 3 * 16}
    walk = [
        (expression(tile.row)({**env, "bx": b}) // 16, expression(tile.column)({**env, "bx": b}) // 16)
        for b in range(18)
    ]
    assert walk[:5] == [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1)]
    assert walk[12:15] == [(4, 0), (5, 0), (4, 1)]


def test_every_sampled_configuration_renders() -> None:
    problem: Problem = Gemm(77, 333, 123, "fp16", "fp32", "tt", "alpha_beta")
    for configuration in samples(problem, 25):  # type: ignore[arg-type]
        assert render(problem, configuration).text.count("__global__") == 1


def test_rules_on_arrays_agree_with_rules_one_by_one() -> None:
    """The space judges a million at once with NumPy, why_invalid one with Python: they must not differ."""
    problem = Gemm(200, 300, 400, "bf16", layout="nn")
    space = Space(problem, H200, [SIMT])
    knobs = SIMT.parameters(problem, H200)
    rng = np.random.default_rng(3)
    for _ in range(300):
        values = {p.name: p.values[int(rng.integers(len(p.values)))] for p in knobs}
        configuration = Configuration.of("simt", values)
        valid = not SIMT.why_invalid(problem, configuration, H200)
        try:
            space.index(configuration)
            member = True
        except ConfigurationError:
            member = False
        assert member == valid


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_starting_points_are_valid_and_several(layout: str, dtype: str) -> None:
    for shape in ((4096, 4096, 4096), (1000, 1000, 1000), (512, 777, 333)):
        problem = Gemm(*shape, dtype, layout=layout)
        points = SIMT.starting_points(problem, H200)
        assert len(set(points)) == len(points) >= 6
        assert not any(SIMT.why_invalid(problem, point, H200) for point in points)
    space = Space(problem, H200, [SIMT])  # the smallest of the three: enumerating takes its time
    assert len({space.index(p) for p in points}) == len(points)
