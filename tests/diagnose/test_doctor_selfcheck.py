"""The self-check of low-precision users: each question, asked of problems and GPUs whose answer is known."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.device.base import Measurement, Outcome, Report, Verification
from gemmtune.diagnose import selfcheck
from gemmtune.diagnose.check import Status
from gemmtune.pack.format import PackData, write_pack
from gemmtune.pack.schema import Table
from gemmtune.space.errors import ToolchainError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import TABLE, gpu

H200 = gpu("h200")


@pytest.mark.parametrize(
    ("card", "dtype", "status", "words"),
    [
        ("h200", "bf16", Status.OK, "tensor cores, 989 TFLOP/s"),
        ("h200", "tf32", Status.OK, "tensor cores, 494 TFLOP/s"),
        ("h200", "fp32", Status.WARNING, "tf32"),
        ("rtx3090", "fp32", Status.OK, "FMA pipe"),  # its tensor cores are no faster in tf32
        ("t4", "fp16", Status.OK, "tensor cores, 65 TFLOP/s"),
        ("t4", "bf16", Status.WARNING, "do not multiply bf16"),
        ("v100", "fp16", Status.WARNING, "125 TFLOP/s"),
        ("v100", "bf16", Status.WARNING, "do not multiply bf16"),
        ("t4", "tf32", Status.PROBLEM, "tf32"),
    ],
)
def test_precision_must_fit_the_generation(card: str, dtype: str, status: Status, words: str) -> None:
    found = selfcheck.precision(Gemm(512, 512, 512, dtype), TABLE[card])
    assert found.status is status
    assert words in found.value
    assert (found.cure == "") is (status is Status.OK)


def test_a_dtype_that_is_refused_names_those_that_are_not() -> None:
    found = selfcheck.precision(Gemm(512, 512, 512, "tf32"), TABLE["t4"])
    for name in found.data["able"]:
        assert selfcheck.precision(Gemm(512, 512, 512, name), TABLE["t4"]).status is not Status.PROBLEM
        assert name in found.cure
    assert "fp16" in found.data["able"]


@given(
    m=st.integers(2, 70), n=st.integers(2, 70), k=st.integers(2, 70), dtype=st.sampled_from(["fp32", "fp16", "bf16"]),
    layout=st.sampled_from(["nt", "nn", "tn", "tt"]), extra=st.integers(0, 9),
)  # fmt: skip
def test_operands_are_well_exactly_where_every_row_starts_at_16_bytes(
    m: int, n: int, k: int, dtype: str, layout: str, extra: int
) -> None:
    packed = Gemm(m, n, k, dtype, layout=layout)
    gemm = replace(packed, lda=packed.environment()["lda"] + extra)
    found = selfcheck.operands(gemm)
    steps = {t.name: t.ld * t.dtype.bytes for t in gemm.tensors()}
    assert (found.status is Status.OK) == all(step % 16 == 0 for step in steps.values())
    for name, step in steps.items():
        access = found.data["access_bytes"][name]
        assert 16 % access == 0
        assert step % access == 0
        assert access == 16 or step % (2 * access), "it is the widest that fits"


def test_the_cure_for_narrow_rows_cures_them() -> None:
    gemm = Gemm(1000, 1001, 999, "bf16")
    found = selfcheck.operands(gemm)
    assert found.status is Status.WARNING
    assert "1000 in a, 1000 in b and 1008 in d" in found.cure
    assert selfcheck.operands(replace(gemm, lda=1000, ldb=1000, ldd=1008)).status is Status.OK


def test_a_single_row_needs_no_pitch() -> None:
    assert "a" not in selfcheck.operands(Gemm(1, 1024, 1001, "bf16")).data["access_bytes"]


@pytest.mark.parametrize(
    ("shape", "status", "words"),
    [
        ((16, 16, 16), Status.WARNING, "2 us that starting one takes"),
        ((16, 4096, 4096), Status.OK, "split K"),
        ((4096, 4096, 4096), Status.OK, "7.8 waves"),
        ((1536, 1536, 8192), Status.OK, "45 % idle"),  # 144 tiles on 132 SMs: twelve blocks run alone
        ((16384, 16384, 16384), Status.OK, "power cap"),
    ],
)
def test_size_says_where_tuning_pays(shape: tuple[int, int, int], status: Status, words: str) -> None:
    found = selfcheck.size(Gemm(*shape), H200)
    assert found.status is status
    assert words in f"{found.value} {found.cure}"


def test_what_bounds_a_product_is_told() -> None:
    assert "memory" in selfcheck.size(Gemm(16, 8192, 8192), H200).value
    assert "arithmetic" in selfcheck.size(Gemm(8192, 8192, 8192), H200).value


def test_the_target_is_tried_with_a_kernel() -> None:
    found = selfcheck.target(H200)
    assert found.status is Status.OK
    assert found.data["arch"] == "sm_90a"
    with pytest.raises(ToolchainError, match="sm_50"):
        selfcheck.target(replace(H200, capability=(5, 0)))


@pytest.mark.parametrize(
    ("made_on", "status", "cure"),
    [
        ("h200", Status.OK, ""),
        ("h100", Status.WARNING, "allow_unmeasured"),
        ("a100", Status.PROBLEM, "tune and export here"),
    ],
)
def test_a_pack_is_for_its_gpu_for_its_generation_or_for_neither(
    tmp_path: Path, made_on: str, status: Status, cure: str
) -> None:
    maker = TABLE[made_on]
    table = Table(maker.key, maker.name, maker.arch, "sustained", "cold", {}, ())
    write_pack(tmp_path / "x.kpack", PackData((table,), {}, {}, {}))
    found = selfcheck.pack(str(tmp_path / "x.kpack"), H200)
    assert found.status is status
    assert cure in found.cure
    assert maker.arch in found.value


def trial(clock: float | None, throttle: str = "") -> Report:
    return Report(
        Outcome.CORRECT, measurement=Measurement(9.0, 8.9, 9.1, ratio=1.02, clock_mhz=clock, throttle=throttle)
    )


@pytest.mark.parametrize(
    ("report", "before", "status", "words"),
    [
        (trial(1350, "power cap"), 1980, Status.OK, "flatter"),
        (trial(1980), 1980, Status.OK, "1.02x the baseline"),
        (trial(1200, "thermal (hardware)"), 1980, Status.PROBLEM, "thermal"),
        (trial(900, "power brake"), 1980, Status.PROBLEM, "power brake"),
        (trial(None), None, Status.WARNING, "NVML does not tell"),
        (Report(Outcome.OUT_OF_MEMORY, "No room."), 1980, Status.PROBLEM, "No room."),
    ],
)
def test_warming_up_tells_the_clock_that_times_are_taken_at(
    report: Report, before: int | None, status: Status, words: str
) -> None:
    found = selfcheck.warm_up(report, before, 1980)
    assert found.status is status
    assert words in found.value
    if "flatter" not in words:
        assert "flatter" not in found.value


def test_the_first_kernel_must_be_right() -> None:
    proof = Verification(True, 1e-7, 1e-5, 0.1, (), 1.0)
    assert selfcheck.works(Report(Outcome.CORRECT, verification=proof)).status is Status.OK
    wrong = Report(Outcome.WRONG, "One corner is wrong.", replace(proof, passed=False))
    assert selfcheck.works(wrong).status is Status.PROBLEM
    crashed = selfcheck.works(Report(Outcome.INFRASTRUCTURE, "The worker ended."))
    assert crashed.status is Status.PROBLEM
    assert "The worker ended." in crashed.value


@pytest.mark.parametrize(
    ("shape", "free", "status", "words"),
    [
        ((4096, 4096, 4096), None, Status.OK, "2 sets rotate"),
        ((4096, 4096, 4096), 2**30, Status.PROBLEM, "96.0 MiB"),  # all that is left is what libraries need
        ((512, 512, 512), 2**30 + 2**25, Status.WARNING, "L2 flatters"),
        ((16, 16, 16), None, Status.WARNING, "still lie in the L2"),
        ((65536, 262144, 131072), None, Status.OK, "one set is so large"),
        ((131072, 262144, 131072), None, Status.PROBLEM, "139.8 GiB"),
    ],
)
def test_operands_and_their_copies_must_fit(
    shape: tuple[int, int, int], free: int | None, status: Status, words: str
) -> None:
    found = selfcheck.memory(Gemm(*shape), H200, free)
    assert found.status is status
    assert words in found.value


@given(st.integers(1, 2**38))
def test_more_free_memory_is_never_worse(free: int) -> None:
    order = [Status.OK, Status.WARNING, Status.PROBLEM]
    gemm = Gemm(2048, 2048, 2048)
    less, more = (selfcheck.memory(gemm, H200, f).status for f in (free, 2 * free))
    assert order.index(more) <= order.index(less)
