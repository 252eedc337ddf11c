"""The estimate: bounded by the floor, moved the right way by each resource."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.estimate import blocks_per_sm, estimate, floor_us
from gemmtune.space.family import Family, Traits
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import TABLE, Gpu, gpu
from gemmtune.space.problem import Problem
from gemmtune.space.recipe import LaunchRecipe

H200 = gpu("h200")
C = Configuration("fixed", ())
TRAITS = Traits(128, 128, 32, 1, 4, 256, 65536, 128, "tensor", 0.8)


class Fixed(Family):
    """A family whose traits are given."""

    name = "fixed"
    summary = "for tests"

    def __init__(self, traits: Traits) -> None:
        self.fixed = traits

    def unsupported(self, problem: Problem, gpu: Gpu) -> str | None:
        return None

    def parameters(self, problem: Problem, gpu: Gpu) -> tuple[Parameter, ...]:
        return ()

    def plan(self, problem: Problem, configuration: Configuration) -> LaunchRecipe:
        raise AssertionError

    def traits(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> Traits:
        return self.fixed

    def context(self, problem: Problem, configuration: Configuration) -> dict[str, Any]:
        raise AssertionError


def us(
    problem: Gemm, g: Gpu = H200, counters: dict[str, float] | None = None, spills: int = 0, **changes: Any
) -> float:
    return estimate(problem, C, Fixed(replace(TRAITS, **changes)), g, counters, spill_bytes=spills).us


@given(
    st.tuples(*[st.integers(1, 5000)] * 3),
    st.sampled_from(["fp32", "tf32", "fp16", "bf16"]),
    st.sampled_from(sorted(TABLE)),
    st.sampled_from([(16, 8, 16, 32, 1), (64, 64, 32, 128, 2), (128, 256, 64, 256, 3)]),
    st.sampled_from([1, 3]),
)
def test_never_below_the_floor_and_finite(
    size: tuple[int, int, int], dtype: str, name: str, tile: tuple[int, int, int, int, int], splits: int
) -> None:
    problem, g = Gemm(*size, dtype), TABLE[name]
    unit = "fma" if dtype == "fp32" or dtype not in g.peak else "tensor"
    traits = Traits(tile[0], tile[1], tile[2], splits, tile[4], tile[3], 16384, 100, unit, 0.9)
    e = estimate(problem, C, Fixed(traits), g)
    assert e.floor_us <= e.us < math.inf
    assert max(e.compute_us, e.memory_us, e.l2_us, e.latency_us) <= e.us
    assert 0 < e.occupancy <= 1
    assert 0 < e.efficiency <= 1
    assert e.blocks == -(-size[0] // tile[0]) * -(-size[1] // tile[1]) * splits


def test_floor_of_the_h200_is_fixed() -> None:
    assert floor_us(Gemm(4096, 4096, 4096), H200) == pytest.approx(174.0, abs=0.1)
    assert floor_us(Gemm(64, 2112, 7168), H200) == pytest.approx(7.0, abs=0.1)
    small_output = Gemm(16, 4096, 4096)
    assert floor_us(small_output, H200) == pytest.approx(1e6 * small_output.bytes / 4.5e12)
    large_output = Gemm(4096, 4096, 64)
    assert floor_us(large_output, H200) == pytest.approx(1e6 * large_output.bytes / 4.3e12)
    assert floor_us(Gemm(4096, 4096, 4096), gpu("a100")) == pytest.approx(2 * 4096**3 / 312e6)


def test_blocks_on_an_sm() -> None:
    assert blocks_per_sm(256, 0, 32, H200) == (8, "threads")
    assert blocks_per_sm(256, 0, 128, H200) == (2, "registers")
    assert blocks_per_sm(256, 100 * 1024, 32, H200) == (2, "shared_memory")
    assert blocks_per_sm(32, 0, 16, H200) == (32, "blocks")
    assert blocks_per_sm(128, H200.shared_per_block, 32, H200) == (1, "shared_memory")
    assert blocks_per_sm(1024, 0, 128, H200) == (0, "registers")


def test_what_does_not_fit_takes_for_ever() -> None:
    e = estimate(Gemm(64, 64, 64), C, Fixed(TRAITS), H200, registers=255)
    assert math.isfinite(e.us)
    e = estimate(Gemm(64, 64, 64), C, Fixed(replace(TRAITS, threads=1024)), H200, registers=128)
    assert e.us == math.inf
    assert e.limiter == "registers"


def test_wave_quantisation() -> None:
    one_wave, a_tile_more = Gemm(128 * 12, 128 * 11, 4096), Gemm(128 * 12, 128 * 12, 4096)
    assert us(a_tile_more) > 1.3 * us(one_wave)


def test_counters_and_depth_move_the_estimate() -> None:
    p = Gemm(4096, 4096, 4096)
    base = us(p)
    assert us(p, counters={"bank_conflict_factor": 2.0}) > base
    assert us(p, counters={"sector_factor": 4.0}) > base
    assert us(p, counters={"other": 4.0}) == base
    assert us(p, stages=2) > base
    assert us(p, synchronous=False) < base
    assert us(p, efficiency=0.4) > base
    assert us(p, tile_m=32, tile_n=32) > base
    assert us(p, gpu("a100")) > base


def test_spills_cost() -> None:
    p = Gemm(4096, 4096, 4096)
    assert us(p) < us(p, spills=40) < us(p, spills=400)


def test_few_stages_leave_a_long_reduction_waiting_for_its_loads() -> None:
    few_tiles = Gemm(128, 128 * 100, 16384)
    parts = estimate(few_tiles, C, Fixed(replace(TRAITS, stages=2, tile_k=16)), H200)
    assert parts.latency_us > max(parts.compute_us, parts.l2_us)
    deeper = estimate(few_tiles, C, Fixed(replace(TRAITS, stages=6, tile_k=16)), H200)
    assert deeper.latency_us == pytest.approx(parts.latency_us / 5)
    assert deeper.us < parts.us


def test_splitting_k_helps_where_tiles_are_few_only() -> None:
    narrow, wide = Gemm(64, 512, 16384), Gemm(8192, 8192, 1024)
    assert us(narrow, splits=8) < us(narrow)
    assert us(wide, splits=8) > us(wide)


AHEAD: dict[str, Any] = {"synchronous": False, "ring": True, "tile_k": 64, "threads": 384, "shared_bytes": 200_000}


def test_clusters_of_four_do_not_have_every_sm() -> None:
    square = Gemm(1024, 2048, 1024, "bf16")  # 128 tiles for 132 SMs
    alone, pairs, fours = (us(square, **AHEAD, cluster=c) for c in (1, 2, 4))
    assert alone < pairs < 1.2 * alone
    assert fours > 1.3 * pairs  # in two turns


def test_k_tiles_dealt_out_evenly_save_the_last_turn_but_cost_handovers() -> None:
    one_more = Gemm(128 * 133, 128, 16384, "bf16")  # a tile more than SMs
    assert us(one_more, **AHEAD, streamed=True) < us(one_more, **AHEAD)
    short = Gemm(128 * 133, 128, 64, "bf16")
    assert us(short, **AHEAD, streamed=True) > us(short, **AHEAD)
    full = Gemm(128 * 132, 128, 4096, "bf16")  # nothing to deal out
    assert us(full, **AHEAD, streamed=True) == us(full, **AHEAD)


def test_blocks_that_add_up_on_chip_need_not_wait_for_device_memory() -> None:
    few = Gemm(128, 2048, 8192, "bf16")
    assert us(few, **AHEAD, splits=4, gathered=4, cluster=4) < us(few, **AHEAD, splits=4) < us(few, **AHEAD)


def test_a_ring_of_two_stages_hides_no_latency() -> None:
    deep = Gemm(128, 128, 65536, "bf16")
    two, four, eight = (us(deep, **AHEAD, stages=n) for n in (2, 4, 8))
    assert two - four > 2 * (four - eight) > 0


def test_json_holds_every_part() -> None:
    data = estimate(Gemm(64, 64, 64), C, Fixed(TRAITS), H200).to_json()
    assert {"us", "floor_us", "limiter", "waves", "occupancy"} <= set(data)
