"""A mistake in what hopper's own templates render does not pass: synchronisation is taken out of its kernels."""

from __future__ import annotations

import pytest

from gemmtune.codegen.kernel import KernelSource
from gemmtune.codegen.render import render
from gemmtune.device.emulator.emulate import Emulation, Run, emulate
from gemmtune.device.emulator.launch import SCHEDULES
from gemmtune.space.configuration import Configuration
from gemmtune.space.families import family
from gemmtune.space.gemm import Gemm

PROBLEM = Gemm(200, 136, 520)
SMALL = Configuration.parse(
    "hopper bm=64 bn=48 bk=64 stages=3 warpgroups=1 schedule=cooperative cluster=1x1 raster=rows group=1 splits=1 "
    "stream=0 swap=0 hints=none store=tma producer=24 persistent=1 programmatic=0 blocks=1"
)
PAIR: dict[str, int | str] = {"cluster": "2x1"}
PINGPONG: dict[str, int | str] = {"schedule": "pingpong", "warpgroups": 2}
COOPERATIVE: dict[str, int | str] = {"warpgroups": 2, "bm": 128}
SPLIT: dict[str, int | str] = {"splits": 3, "store": "direct"}
MULTICAST: dict[str, int | str] = {"cluster": "1x2", "store": "shared", "warpgroups": 2, "bm": 128}
ONE_PIECE: dict[str, int | str] = {"persistent": 0, "store": "shared"}
FOUR: dict[str, int | str] = {"cluster": "1x4", "bn": 32}
LEFT_EARLY: dict[str, int | str] = {**MULTICAST, "store": "direct", "persistent": 0}
BOTH: dict[str, int | str] = {"cluster": "2x1x2", "store": "direct", "persistent": 0}
GATHER: dict[str, int | str] = {"cluster": "1x1x4", "store": "direct", "persistent": 0, "warpgroups": 2, "bm": 128}


def kernel(knobs: dict[str, int | str]) -> KernelSource:
    return render(PROBLEM, Configuration.of("hopper", {**SMALL, **knobs}), family("hopper"))


def proved(text: str, source: KernelSource) -> Emulation:
    """Under each schedule until one finds something, with four tiles a block."""
    for schedule in SCHEDULES:
        found = emulate(text, source.recipe, PROBLEM, runs=[Run(PROBLEM.m, schedule, 1.0, sms=3)])
        if found.fault:
            break
    return found


@pytest.mark.parametrize("knobs", [{}, PAIR, PINGPONG, COOPERATIVE, SPLIT, MULTICAST, ONE_PIECE, GATHER, FOUR, BOTH])
def test_whole_kernels_pass(knobs: dict[str, int | str]) -> None:
    source = kernel(knobs)
    assert proved(source.text, source).fault == ""


def test_one_warp_may_release_what_the_others_wrote_before_they_met() -> None:
    source = kernel(GATHER)
    assert ARRIVE in source.text
    assert proved(source.text.replace(ARRIVE, MEET + ONE_WARP), source).fault == ""


Changes = list[tuple[str, str]]
IN_LOOP = "if (tile > first) release(previous, lane);"
AT_END = "hw::wgmma_wait<0>();\n    release(previous, lane);"
EXPECT = "hw::mbarrier_expect(shared.full + stage, STAGE_BYTES);"
NEXT_STAGE = "if (++stage == STAGES) stage = 0, phase ^= 1;"
TO_Q = "stage * STAGE_BYTES + P_BYTES;"
FIRST_OWN, FIRST_COMMON = "load_own(work, work.first + i, i);", "load_common(begun, begun.first + i, i);"
AHEAD = "return tiles < STAGES ? tiles : STAGES;"
BEGIN = "Producer(shared, &p_map, &q_map, schedule).begin();"
INIT_FULL = "for (int i = 0; i < STAGES; i++) hw::mbarrier_init(shared.full + i, 1);"
FENCED = INIT_FULL + "\n      hw::mbarrier_fence_init();"
SYNC = "  hw::sync_block();"
TAIL = "for (int i = 0; i < STAGES; i++) {\n      hw::mbarrier_wait(shared.empty + stage, phase);"
ARRIVE, RELAXED = "hw::cluster_arrive_shared();", "hw::cluster_arrive_relaxed();"
WAIT = "hw::cluster_wait();\n      add_up"
PRODUCER = "hw::cluster_arrive_relaxed();  // they have no part in the sums\n    hw::cluster_wait();"
MEET = "hw::named_barrier(1, CONSUMERS * 128);"
ONE_WARP = "if (warp == 0) hw::cluster_arrive(); else hw::cluster_arrive_relaxed();"
MISTAKES: dict[str, tuple[dict[str, int | str], Changes]] = {
    "the producer waits for the wrong parity": ({}, [("u32 phase = done < STAGES;", "u32 phase = done >= STAGES;")]),
    "the producer's parity forgets what was loaded ahead": ({}, [("u32 phase = done < STAGES;", "u32 phase = 1;")]),
    "the producer's stage forgets what was loaded ahead": (
        {"stages": 4, "splits": 3, "store": "direct"},
        [("int stage = done % STAGES;", "int stage = 0;")],
    ),
    "what was loaded ahead is loaded again": (ONE_PIECE, [("tile = work.first + done;", "tile = work.first;")]),
    "what was loaded ahead is left out of every piece": ({}, [("      done = 0;\n", "")]),
    "more is loaded ahead than there are stages": (ONE_PIECE, [(AHEAD, "return tiles;")]),
    "more is loaded ahead than the piece has": (
        {"stages": 10, "bn": 8, "store": "shared"},
        [(AHEAD, "return STAGES;")],
    ),
    "loads go ahead of their barriers": (
        {},
        [(BEGIN, ""), ("hw::tensor_prefetch(&p_map);", BEGIN + " hw::tensor_prefetch(&p_map);")],
    ),
    "loads go ahead of the fence": ({}, [(FENCED, INIT_FULL)]),
    "loads go ahead of the other block's barriers": (
        PAIR,
        [(FIRST_OWN, f"{{ {FIRST_OWN} {FIRST_OWN.replace('own', 'common')} }}"), (FIRST_COMMON, ";")],
    ),
    "the empty barriers are not there yet": ({}, [(SYNC, "")]),
    "the empty barriers are nobody's": (
        {},
        [("for (int i = 0; i < STAGES; i++) hw::mbarrier_init(shared.empty", "//")],
    ),
    "consumers wait for the wrong parity": ({}, [("  u32 phase = 0;\n", "  u32 phase = 1;\n")]),
    "parity never flips": ({}, [(NEXT_STAGE, "if (++stage == STAGES) stage = 0;")]),
    "a stage is released while it is read": (
        {},
        [(IN_LOOP, "release(stage, lane);"), (AT_END, "hw::wgmma_wait<0>();")],
    ),
    "a stage is released a tile early": ({}, [("hw::wgmma_wait<1>();", "hw::wgmma_wait<2>();")]),
    "a stage is never released": ({}, [(IN_LOOP, "")]),
    "accumulators are read too early": ({}, [(AT_END, "release(previous, lane);")]),
    "TMA stores what no fence made visible": ({}, [("hw::fence_proxy_async();", "")]),
    "no bytes are expected": ({}, [(EXPECT, "hw::mbarrier_arrive(shared.full + stage);")]),
    "too few bytes are expected": ({}, [(EXPECT, EXPECT.replace("STAGE_BYTES", "P_BYTES"))]),
    "too many bytes are expected": ({}, [(EXPECT, EXPECT.replace("STAGE_BYTES", "STAGE_BYTES + 128"))]),
    "a box runs over the next stage": ({}, [(TO_Q, TO_Q.replace(";", " + 1024;"))]),
    "a box is out of the swizzle's step": ({}, [(TO_Q, TO_Q.replace(";", " - 128;"))]),
    "a buffer is filled while TMA reads it": ({}, [("hw::tma_store_wait_read<0>()", "")]),
    "barriers are used before they are visible": ({}, [("hw::mbarrier_fence_init();", "")]),
    "a block ends while TMA reads from it": ({}, [("if (thread == 0) hw::tma_store_wait<0>();", "")]),
    "a cluster is left too early": (PAIR, [(TAIL, TAIL.replace("STAGES", "0"))]),
    "a cluster is left a stage too early": (LEFT_EARLY, [(TAIL, TAIL.replace("STAGES", "STAGES - 1"))]),
    "a cluster's barriers are not released": (
        PAIR,
        [("hw::cluster_arrive_shared();", "hw::cluster_arrive_relaxed();")],
    ),
    "a cluster does not meet": (PAIR, [("hw::cluster_arrive_shared();\n  hw::cluster_wait();", "hw::sync_block();")]),
    "a stage does not wait for the other block": (PAIR, [("* 4 * (CP + CQ - 1)", "* 4")]),
    "both blocks load the same half": (PAIR, [("work.q + part", "work.q")]),
    "what all need of the first stages is not loaded": (FOUR, [(FIRST_COMMON, ";")]),
    "one of four does not get what all need": (FOUR, [("(u16)(15 <<", "(u16)(7 <<")]),
    "a stage does not wait for all four": (FOUR, [("* 4 * (CP + CQ - 1)", "* 4 * 3")]),
    "what is loaded goes to those with another part of K": (
        BOTH,
        [("schedule.k_rank * CQ + schedule.q_rank", "schedule.q_rank")],
    ),
    "stages are released to those with another part of K": (BOTH, [("lane / (CP * CQ) == schedule.k_rank && ", "")]),
    "sums are read from another tile's block": (BOTH, [(" * (CP * CQ) + same;", " * (CP * CQ);")]),
    "consumers do not take turns": (PINGPONG, [("pipe.await_turn();", "")]),
    "skipped stages do not count": (PINGPONG, [("phase ^= to / STAGES & 1;", "")]),
    "a turn is never yielded": (PINGPONG, [("hw::mbarrier_arrive(shared.turn + (consumer ^ 1))", "")]),
    "consumers meet at one barrier": (COOPERATIVE, [("hw::named_barrier(1 + consumer,", "hw::named_barrier(1,")]),
    "sums are not fenced": (SPLIT, [("hw::fence_device();  // the sums before the count", "")]),
    "the count is not fenced": (SPLIT, [("hw::fence_device();  // the count before", "//")]),
    "sums are read before the cluster has met": (GATHER, [(ARRIVE, ""), (WAIT, "add_up"), (PRODUCER, "")]),
    "sums are read behind the block's own barrier": (GATHER, [(ARRIVE, MEET), (WAIT, "add_up"), (PRODUCER, "")]),
    "the barrier before sums are read orders nothing": (GATHER, [(ARRIVE, RELAXED)]),
    "one warp releases what others may still write": (GATHER, [(ARRIVE, ONE_WARP)]),
    "who releases has not met who wrote": (GATHER, [(ARRIVE, MEET + RELAXED), (PRODUCER, "hw::cluster_sync();")]),
    "a block ends while its sums are read": (
        GATHER,
        [("\n  hw::cluster_arrive_relaxed();\n  hw::cluster_wait();", "")],
    ),
    "sums overwrite what wgmma still reads": (GATHER, [("hw::named_barrier(1, CONSUMERS * 128);", "")]),
    "a block's sums are left out": (GATHER, [("i < CK; i++) parts", "i < CK - 1; i++) parts")]),
    "a block's sums are added twice": (GATHER, [("(rank + i) % CK", "(rank + i / 2) % CK")]),
    "sums of a block that is none": (GATHER, [("(rank + i) % CK", "rank + i")]),
    "both consumers leave their sums in one place": (GATHER, [("p = consumer * (BLOCKS_P * 64) +", "p =")]),
    "blocks share out k tiles that overlap": (GATHER, [("K_TILES * (k_rank + 1) / CK", "K_TILES * (k_rank + 2) / CK")]),
    "a part too few is added": (SPLIT, [("!= work.parts - 1", "!= work.parts - 2")]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_caught(name: str) -> None:
    knobs, changes = MISTAKES[name]
    source = kernel(knobs)
    text = source.text
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    assert proved(text, source).fault != ""
