"""Machine instructions by kind, their arithmetic, and the laws of what an ailment costs."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.codegen.control_flow import Instruction
from gemmtune.codegen.render import render
from gemmtune.diagnose import mix, model
from gemmtune.diagnose.facts import SPACES, Facts, Subject, Traffic, judged_on, traffic_of
from gemmtune.diagnose.mix import Mix, flops_of, kind_of, mix_of
from gemmtune.diagnose.verdict import judge
from gemmtune.space.families import family
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import TABLE, gpu


def _instruction(text: str) -> Instruction:
    opcode, _, operands = text.partition(" ")
    return Instruction(0, "", opcode, tuple(o.strip() for o in operands.split(",")), text)


@pytest.mark.parametrize(
    ("text", "kind", "flops"),
    [
        ("FFMA R1, R2, R3, R4", mix.FMA, 64),
        ("FADD R1, R2, R3", mix.FMA, 32),
        ("HFMA2 R1, R2, R3, R4", mix.FMA, 128),
        ("HFMA2.MMA R1, -RZ, RZ, 0, 0", mix.MOVE, 0),
        ("HFMA2 R1, -RZ, RZ, 0, 0", mix.MOVE, 0),
        ("HMMA.16816.F32.BF16 R4, R8, R12, R4", mix.TENSOR, 4096),
        ("HMMA.1688.F32.TF32 R4, R8, R12, R4", mix.TENSOR, 2048),
        ("HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4]", mix.TENSOR, 65536),
        ("IMAD.WIDE.U32 R2, R3, R4, R6", mix.INTEGER, 0),
        ("IMAD.MOV.U32 R2, RZ, RZ, R6", mix.MOVE, 0),
        ("LOP3.LUT R2, R3, R4, RZ, 0xc0", mix.INTEGER, 0),
        ("UIADD3 UR4, UR5, UR6, URZ", mix.MOVE, 0),
        ("LDS.128 R8, [R54+0x800]", mix.SHARED, 0),
        ("LDSM.16.M88.4 R8, [R4]", mix.SHARED, 0),
        ("LDGSTS.E.BYPASS.128 [R4], desc[UR4][R2.64]", mix.GLOBAL, 0),
        ("STL.64 [R1], R2", mix.LOCAL, 0),
        ("I2F.RP R2, R3", mix.CONVERSION, 0),
        ("F2FP.BF16.F32.PACK_AB R2, R3, R4", mix.PACKING, 0),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", mix.CONTROL, 0),
        ("NEWTHING R1", mix.OTHER, 0),
    ],
)
def test_each_instruction_has_its_kind_and_its_arithmetic(text: str, kind: str, flops: float) -> None:
    assert (kind_of(_instruction(text)), flops_of(_instruction(text))) == (kind, flops)


def test_a_loop_without_arithmetic_has_no_mix() -> None:
    assert mix_of([_instruction("LDS R1, [R2]"), _instruction("BRA `(.L)")]) is None


def _facts(gemm: Gemm, index: int = 0, short: str = "h200", **more: object) -> Facts:
    known = family("simt" if gemm.dtype == "fp32" else "mma")
    configuration = known.starting_points(gemm, gpu("h200"))[index]
    traits = known.traits(gemm, configuration, gpu("h200"))
    subject = Subject("k", gemm, gpu(short), render(gemm, configuration), traits.registers, 0, traits.shared_bytes)
    return replace(Facts(subject), **more)  # type: ignore[arg-type]


_FP32 = Gemm(2048, 2112, 512, dtype="fp32")
_counts = st.integers(1, 10**6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(_counts, _counts, _counts), min_size=4, max_size=4),
    st.integers(1, 300),
    st.integers(0, 900),
    st.integers(0, 80),
    st.sampled_from(sorted(TABLE)),
)
def test_a_cure_never_harms_and_costs_are_factors(
    counted: list[tuple[int, int, int]], math: int, integer: int, local: int, short: str
) -> None:
    traffic = {
        space: Traffic(requests, requests * worse, requests)
        for space, (requests, worse, _) in zip(SPACES, counted, strict=True)
    }
    loop = Mix({mix.FMA: math, mix.INTEGER: integer, mix.LOCAL: local, mix.SHARED: 8}, 64.0 * math, integer // 2)
    facts = _facts(_FP32, short=short, traffic=traffic, mix=loop)
    costs = model.costs(facts)
    assert tuple(costs) == model.AILMENTS
    assert all(cost >= 1 for cost in costs.values())
    assert model.seconds(facts) * (1 + 1e-9) >= model.seconds(facts, model.AILMENTS)


def test_the_costlier_ailment_comes_first() -> None:
    conflicts = {"shared read": Traffic(1e5, 3e6, 1e5), "global read": Traffic(1e3, 4e3, 4e3)}
    sectors = {"shared read": Traffic(1e3, 1e3, 1e3), "global read": Traffic(1e5, 3.2e6, 4e5)}
    assert judge(_facts(_FP32, traffic=conflicts)).first == model.BANK_CONFLICTS
    assert judge(_facts(_FP32, traffic=sectors)).first == model.GLOBAL_MEMORY
    both = judge(_facts(_FP32, traffic={**sectors, "shared read": Traffic(1e5, 9e6, 1e5)}))
    assert both.first == model.BANK_CONFLICTS


def test_a_kernel_that_does_not_fit_is_told_so() -> None:
    facts = _facts(Gemm(4096, 4096, 4096), short="t4")
    assert not facts.fit[0]
    verdict = judge(facts)
    assert verdict.first == model.OCCUPANCY
    assert "Not one block fits an SM of Tesla T4" in verdict.advice


def test_spills_in_the_hot_loop_are_an_ailment_of_their_own() -> None:
    loop = Mix({mix.FMA: 64, mix.LOCAL: 60, mix.SHARED: 16}, 4096.0)
    facts = _facts(_FP32, mix=loop)
    facts = replace(facts, subject=replace(facts.subject, spill_bytes=480))
    verdict = judge(facts)
    assert verdict.first == model.SPILLS
    assert "480 bytes" in verdict.advice


def test_the_tail_of_the_last_wave_is_seen() -> None:
    gemm = Gemm(128 * 12, 256 * 12, 512)  # 144 tiles for 132 SMs
    facts = _facts(gemm)
    if facts.blocks != 144:
        pytest.skip("the first starting point has other tiles now")
    verdict = judge(facts)
    assert verdict.first == model.WAVES
    assert "last of 1.1 waves" in verdict.advice


def test_times_do_not_go_along_to_another_gpu() -> None:
    subject = replace(_facts(_FP32).subject, us=100.0, ratio=1.1)
    assert judged_on(subject, gpu("h200")).us == 100.0
    assert judged_on(subject, gpu("l4")).us is None


def test_counters_that_nobody_took_are_no_traffic() -> None:
    assert traffic_of({}) == {}
    assert traffic_of({"bank_conflict_factor": 1.0}) == {}
