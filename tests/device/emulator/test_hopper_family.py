"""hopper kernels run on the CPU and proved: dtypes, layouts, ragged sizes, schedules, splits, clusters, stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gemmtune.codegen.render import render
from gemmtune.device.emulator import emulate as emulate_module
from gemmtune.device.emulator.emulate import Run, emulate
from gemmtune.device.emulator.launch import SCHEDULES
from gemmtune.space.configuration import Configuration
from gemmtune.space.families import family
from gemmtune.space.gemm import LAYOUTS, Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.space import Space

HOPPER = family("hopper")
FEW = replace(gpu("h200"), sms=4)
"""An H200 with so few multiprocessors that small problems have persistent grids with several tiles a block."""
SMALL = Configuration.parse(
    "hopper bm=64 bn=48 bk=64 stages=3 warpgroups=1 schedule=cooperative cluster=1x1 raster=rows group=1 splits=1 "
    "stream=0 swap=0 hints=none store=direct producer=24 persistent=0 programmatic=0 blocks=1"
)


def prove(problem: Gemm, runs: list[Run] | None = None, **knobs: int | str) -> None:
    """Emulate SMALL with other knobs, and assert that it is right."""
    configuration = Configuration.of("hopper", {**SMALL, **knobs})
    source = render(problem, configuration, HOPPER)
    found = emulate(source.text, source.recipe, problem, runs=runs, seed=3)
    assert found.verification.passed, f"{problem} {configuration}: {found.verification.detail}"


def once(problem: Gemm) -> list[Run]:
    return [Run(problem.m, SCHEDULES[2], 1.0)]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("swap", [0, 1])
def test_every_sixteen_bit_dtype_and_layout_at_a_ragged_size(dtype: str, layout: str, swap: int) -> None:
    problem = Gemm(104, 136, 200, dtype=dtype, layout=layout)
    prove(problem, bn=72, swap=swap, stages=2, store="shared")


@pytest.mark.parametrize(("bk", "swap"), [(32, 0), (64, 1)])
def test_tf32_is_rounded_and_multiplied(bk: int, swap: int) -> None:
    prove(Gemm(104, 72, 84, dtype="tf32"), bk=bk, swap=swap, bn=32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cluster", ["2x1", "1x2", "4x1", "1x4", "2x2", "4x2", "2x4"])
def test_clusters_load_what_they_share_once(layout: str, cluster: str) -> None:
    problem = Gemm(200, 136, 264, layout=layout)
    prove(problem, once(problem), cluster=cluster, bn=32, bk=128, stages=2, store="tma")
    swapped = Gemm(56, 200, 264, layout=layout)
    prove(swapped, once(swapped), cluster=cluster, bn=8 if cluster == "2x4" else 16, swap=1)


@pytest.mark.parametrize(
    ("epilogue", "out_dtype"), [("identity", "fp32"), ("alpha_beta", "fp16"), ("bias", "bf16"), ("bias", "fp32")]
)
@pytest.mark.parametrize(
    ("store", "swap", "bn"),
    [("direct", 0, 24), ("direct", 1, 24), ("shared", 0, 88), ("shared", 1, 40), ("tma", 0, 64), ("tma", 1, 48)],
)
def test_every_store_epilogue_and_output_type(epilogue: str, out_dtype: str, store: str, swap: int, bn: int) -> None:
    if store == "tma" and swap and out_dtype == "fp32":
        out_dtype = "bf16"  # a transposed fp32 tile is not stored by TMA
    columns = 88 if store == "tma" and out_dtype != "fp32" else 92  # TMA's rows are a multiple of 16 bytes
    problem = Gemm(72, columns, 64, epilogue=epilogue, out_dtype=out_dtype, ldd=96)
    prove(problem, store=store, swap=swap, bn=bn, stages=2)


@pytest.mark.parametrize("bn", [16, 32, 48, 96, 128])
def test_tma_stores_pieces_of_every_width(bn: int) -> None:
    problem = Gemm(100, 136, 64)
    prove(problem, once(problem), bn=bn, bm=128, store="tma", stages=2)
    prove(problem, once(problem), bn=bn, bm=128, store="tma", stages=2, warpgroups=2, swap=1)


@pytest.mark.parametrize("m", [1, 8, 33])
def test_a_small_m_is_the_narrow_side_of_swapped_operands(m: int) -> None:
    for store, bn in (("direct", 8), ("shared", 16), ("tma", 16)):
        prove(Gemm(m, 200, 520), swap=1, bn=bn, bk=128, stages=4, store=store, hints="stream_b")


@pytest.mark.parametrize("raster", ["rows", "columns"])
@pytest.mark.parametrize("group", [1, 4])
def test_a_persistent_block_walks_tile_after_tile(raster: str, group: int) -> None:
    prove(Gemm(328, 280, 136), persistent=1, raster=raster, group=group, store="tma")


@pytest.mark.parametrize(
    "knobs",
    [
        {"store": "tma"},
        {"store": "shared", "bm": 128, "stages": 2},
        {"store": "direct", "splits": 3, "cluster": "1x2"},
        {"store": "tma", "cluster": "2x1", "raster": "columns", "stages": 2},
        {"store": "shared", "stream": 1},
    ],
)
def test_ping_pong_consumers_take_turns(knobs: dict[str, int | str]) -> None:
    prove(Gemm(200, 136, 520), schedule="pingpong", warpgroups=2, persistent=1, **knobs)


@pytest.mark.parametrize(
    "knobs",
    [
        {"store": "tma", "raster": "columns", "epilogue": "bias"},
        {"store": "shared", "swap": 1, "group": 4},
        {"schedule": "pingpong", "warpgroups": 2, "persistent": 1},
        {"splits": 2, "stages": 4},
        {"stream": 1, "persistent": 1, "swap": 1},
    ],
)
def test_a_square_of_blocks_shares_both_operands(knobs: dict[str, Any]) -> None:
    epilogue = str(knobs.get("epilogue", "identity"))
    others = {name: value for name, value in knobs.items() if name != "epilogue"}
    prove(Gemm(200, 136, 520, epilogue=epilogue), **{"cluster": "2x2", "bn": 32, **others})


@pytest.mark.parametrize("bn", [8, 16, 24, 32, 40, 48])
@pytest.mark.parametrize("cluster", ["2x1", "4x1", "4x2"])
def test_parts_of_whole_units_are_loaded_in_turns_where_there_are_fewer_than_blocks(cluster: str, bn: int) -> None:
    problem = Gemm(200, 136, 520)
    prove(problem, once(problem), cluster=cluster, bn=bn, stages=4)


@pytest.mark.parametrize(("warpgroups", "bm"), [(1, 128), (2, 128), (2, 256), (3, 192)])
def test_consumers_share_a_tile(warpgroups: int, bm: int) -> None:
    problem = Gemm(300, 100, 200, ldd=104)
    prove(problem, warpgroups=warpgroups, bm=bm, store="shared", producer=40 if warpgroups > 1 else 24)


@pytest.mark.parametrize(
    "knobs",
    [
        {"splits": 2},
        {"splits": 4, "persistent": 1, "cluster": "2x1", "warpgroups": 3, "bm": 192},
        {"splits": 3, "swap": 1, "store": "tma"},
    ],
)
def test_split_k_adds_up_whoever_comes_last(knobs: dict[str, int | str]) -> None:
    prove(Gemm(200, 136, 520, epilogue="alpha_beta"), **knobs)


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"cluster": "2x1", "store": "tma"},
        {"swap": 1, "bn": 24, "bm": 128, "warpgroups": 2, "store": "shared"},
        {"swap": 1, "bn": 32, "cluster": "1x2", "store": "tma"},
        {"blocks": 2},
    ],
)
def test_stream_k_gives_every_block_the_same(knobs: dict[str, int | str]) -> None:
    prove(Gemm(200, 136, 1000, epilogue="bias"), stream=1, persistent=1, **knobs)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("cluster", "swap"), [
    ("1x1x2", 0), ("1x1x4", 1), ("1x1x8", 0), ("2x1x2", 0), ("1x2x2", 1), ("4x1x2", 1), ("1x4x2", 0), ("2x1x4", 1),
    ("1x2x4", 0),
])  # fmt: skip
def test_the_blocks_of_a_cluster_share_k(dtype: str, layout: str, cluster: str, swap: int) -> None:
    problem = Gemm(104, 136, 1096, dtype=dtype, layout=layout)  # 18 k tiles, the last one ragged
    odd = 8 if cluster[0] == "1" else 0  # else those along P share what they load of Q in pieces of 8 rows
    prove(problem, cluster=cluster, swap=swap, bn=(32 if swap else 64) + odd)


@pytest.mark.parametrize(("epilogue", "out_dtype"), [("identity", "fp32"), ("alpha_beta", "fp16"), ("bias", "bf16")])
@pytest.mark.parametrize("swap", [0, 1])
@pytest.mark.parametrize(("n", "ldd"), [(136, 136), (134, 136), (133, 135), (129, 132), (130, 130)])
def test_a_cluster_stores_every_edge_epilogue_and_output_type(
    epilogue: str, out_dtype: str, swap: int, n: int, ldd: int
) -> None:
    problem = Gemm(71, n, 520, epilogue=epilogue, out_dtype=out_dtype, ldd=ldd)
    prove(problem, once(problem), cluster="1x1x4", swap=swap, bn=24)


@pytest.mark.parametrize(
    "knobs",
    [
        {"warpgroups": 2, "bm": 128, "bn": 112, "bk": 128, "stages": 2},
        {"warpgroups": 1, "bm": 128, "raster": "columns"},
        {"warpgroups": 3, "bm": 192, "bn": 64, "group": 4, "cluster": "1x1x4", "producer": 40},
        {"warpgroups": 2, "bm": 256, "bn": 8, "swap": 1, "cluster": "1x1x8"},
        {"warpgroups": 2, "bm": 128, "bn": 104, "swap": 1, "blocks": 2, "stages": 2, "bk": 128},
    ],
)
def test_consumers_of_a_cluster_share_tiles_of_every_size(knobs: dict[str, int | str]) -> None:
    prove(Gemm(200, 264, 1096, epilogue="bias"), **{"cluster": "1x1x2", **knobs})


@pytest.mark.parametrize(("bk", "swap"), [(32, 0), (64, 1)])
def test_a_cluster_shares_the_k_of_tf32(bk: int, swap: int) -> None:
    prove(Gemm(104, 72, 548, dtype="tf32"), bk=bk, swap=swap, bn=32, cluster="1x1x4")


@pytest.mark.parametrize("m", [1, 8, 33])
def test_a_cluster_serves_a_small_m(m: int) -> None:
    prove(Gemm(m, 200, 1032), swap=1, bn=16, stages=4, cluster="1x1x8", hints="stream_b")


def test_what_a_cluster_adds_up_is_the_same_under_every_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = vars(emulate_module)["_Attempt"]
    compare, outputs = vars(attempt)["_compare"], set()

    def kept(self: Any, operands: Any, launched: Any) -> Any:
        outputs.add(operands.buffers["d"].view(np.dtype(np.uint8)).tobytes())
        return compare(self, operands, launched)

    monkeypatch.setattr(attempt, "_compare", kept)
    problem = Gemm(72, 136, 1096, out_dtype="fp32", ldd=144)
    for schedule in SCHEDULES:
        prove(problem, [Run(problem.m, schedule, 1.0)], cluster="1x1x4")
    assert len(outputs) == 1


def test_a_seeded_sample_of_clusters_that_share_k() -> None:
    rng = np.random.default_rng(8)
    problems = [
        Gemm(130, 104, 1160, dtype="fp16", layout="tn", epilogue="bias", lda=136),
        Gemm(64, 200, 808, dtype="tf32", out_dtype="bf16"),
        Gemm(33, 264, 2056, layout="nn", epilogue="alpha_beta", out_dtype="fp32"),
        Gemm(100, 400, 1032, layout="tt", lda=104),
    ]
    h200 = gpu("h200")
    for problem in problems:
        space = Space(problem, h200, [HOPPER])
        places = (int(i) for i in rng.permutation(len(space))[:4000])
        shared = [place for place in places if space[place]["cluster"].count("x") == 2]
        assert len(shared) >= 4
        for place in shared[:4]:
            prove(problem, [Run(problem.m, SCHEDULES[place % 3], 0.5)], **space[place])


@pytest.mark.parametrize("sms", [1, 2, 3, 5, 7, 11, 24])
def test_stream_k_cuts_tiles_between_any_number_of_blocks(sms: int) -> None:
    problem = Gemm(200, 136, 520)  # 12 tiles of 9 k tiles
    prove(problem, [Run(problem.m, SCHEDULES[sms % 3], 1.0, sms=sms, whole=True)], stream=1, persistent=1)


@pytest.mark.parametrize("stages", [2, 5, 8])
@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"persistent": 1, "store": "tma"},
        {"persistent": 1, "store": "shared", "cluster": "2x1"},
        {"persistent": 1, "schedule": "pingpong", "warpgroups": 2, "store": "tma"},
        {"persistent": 1, "stream": 1},
        {"splits": 2, "swap": 1, "bn": 32},
        {"cluster": "1x1x2"},
    ],
    ids=str,
)
def test_what_is_loaded_before_the_block_meets_fits_the_ring_and_the_first_piece(
    knobs: dict[str, int | str], stages: int
) -> None:
    problem = Gemm(200, 136, 328)  # five k tiles: less than a ring, as many, and more
    runs = [Run(problem.m, SCHEDULES[stages % 3], 1.0, sms=3)]
    prove(problem, runs, stages=stages, bk=64, **knobs)


def test_dependent_launches_compute_the_same() -> None:
    problem = Gemm(104, 136, 264)
    for knobs in ({}, {"cluster": "1x1x2"}, {"cluster": "2x1"}, {"persistent": 1}):
        configuration = Configuration.of("hopper_programmatic", {**SMALL, "programmatic": 1, **knobs})
        source = render(problem, configuration)
        assert emulate(source.text, source.recipe, problem, runs=once(problem)).verification.passed


@pytest.mark.parametrize(("lda", "ldb", "ldd"), [(96, 104, 80), (88, 88, 75)])
@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_pitches_beyond_the_row_are_never_touched(lda: int, ldb: int, ldd: int, layout: str) -> None:
    problem = Gemm(81, 73, 85, layout=layout, lda=lda, ldb=ldb, ldd=ldd)
    for store in ("direct", "shared") if ldd == 80 else ("direct",):
        prove(problem, store=store, stages=2)
    if ldd == 80:
        prove(replace(problem, n=72), store="tma", stages=2)


@pytest.mark.parametrize("swap", [0, 1])
@pytest.mark.parametrize(("n", "out_dtype"), [(92, "bf16"), (94, "fp32")])
def test_a_view_whose_rows_end_within_sixteen_bytes_is_stored_beside_its_neighbours(
    n: int, out_dtype: str, swap: int
) -> None:
    view = Gemm(72, n, 64, out_dtype=out_dtype, ldd=112)
    for store in ("direct", "shared"):
        prove(view, store=store, swap=swap, stages=2)


@pytest.mark.parametrize("swap", [0, 1])
def test_tma_would_overwrite_what_lies_beside_such_a_view(swap: int) -> None:
    view = Gemm(72, 92, 64, ldd=112)
    configuration = Configuration.of("hopper", {**SMALL, "store": "tma", "swap": swap, "stages": 2})
    assert any(reason.startswith("store_row:") for reason in HOPPER.why_invalid(view, configuration, FEW))
    source = render(view, configuration, HOPPER)
    assert not emulate(source.text, source.recipe, view, runs=once(view)).verification.passed


def test_a_seeded_sample_of_the_whole_space() -> None:
    rng = np.random.default_rng(20)
    problems = [
        Gemm(130, 104, 520, dtype="fp16", layout="tn", epilogue="bias", lda=136),
        Gemm(264, 200, 328, dtype="tf32", out_dtype="bf16"),
        Gemm(33, 264, 1000, layout="nn", epilogue="alpha_beta", out_dtype="fp32"),
        Gemm(200, 400, 648, layout="tt", lda=208),
        Gemm(300, 520, 264),
    ]
    for problem in problems:
        space = Space(problem, FEW, [HOPPER])
        for i in rng.integers(len(space), size=4):
            configuration = space[int(i)]
            run = Run(problem.m, SCHEDULES[int(i) % 3], 0.5, sms=FEW.sms, whole=configuration["stream"] == 1)
            prove(problem, [run], **configuration)
