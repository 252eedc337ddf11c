"""The CUDA engine passes what is right and catches what is planted."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gemmtune.device.base import Job, Outcome
from gemmtune.space.gemm import LAYOUTS, Gemm

pytestmark = pytest.mark.gpu
RIGHT = list(itertools.product(["fp32", "tf32", "fp16", "bf16"], LAYOUTS))


@pytest.mark.parametrize(("dtype", "layout"), RIGHT)
def test_a_right_kernel_passes_in_every_type_layout_and_epilogue(
    engine: Any, planted: Callable[..., Job], dtype: str, layout: str
) -> None:
    for epilogue, out in itertools.product(["identity", "alpha_beta", "bias"], ["fp32", "fp16", "bf16"]):
        problem = Gemm(77, 45, 130, dtype, out, layout, epilogue, lda=150, ldb=140, ldd=48)
        report = engine.run(planted(problem, measure=False))
        assert report.outcome is Outcome.CORRECT, report.detail
        verification = report.verification
        assert verification is not None
        assert verification.passed
        assert verification.coverage == 1.0
        assert 0 < verification.rel_error <= verification.error_bound
        assert 0 < verification.excess <= 1
        assert verification.checks[0].startswith("m=77:")
        assert len(verification.checks) == 5
        assert "NaN and infinities" in verification.checks[-1]


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 300, 7), (300, 1, 7), (17, 16, 1), (64, 64, 64), (515, 513, 65)])
def test_odd_shapes_pass(engine: Any, planted: Callable[..., Job], shape: tuple[int, int, int]) -> None:
    report = engine.run(planted(Gemm(*shape, "fp16"), measure=False))
    assert report.outcome is Outcome.CORRECT, report.detail


ONE = "hw::from_float<TD>(1.f)"
FAULTS = {
    "one wrong corner": ({"spoil": "if (last) acc = acc * 1.05f + 0.5f;"}, "row 99, column 70"),
    "one wrong element inside": ({"spoil": "if (row == 31 && column == 15) acc += 1.f;"}, "row 31, column 15"),
    "wrong K tail": ({"k_limit": "K / 16 * 16"}, "compared elements are wrong"),
    "unwritten column": ({"before": "if (column == N - 1) return;"}, "were never written"),
    "unwritten last row of a ragged tile": ({"before": "if (m % 16 && row == m - 1) return;"}, "were never written"),
    "transposed epilogue index": ({"spoil": "if (row == 3 && column == 5) acc = -acc;"}, "row 3, column 5"),
    "write past the end": ({"after": f"if (last) d[row * ldd + N] = {ONE};"}, "outside the output"),
    "write before the start": ({"after": f"if (first) d[-1] = {ONE};"}, "outside the output"),
    "write far past the end": ({"after": f"if (last) d[(row + 40) * ldd] = {ONE};"}, "outside the output"),
    "write into an input's guard": ({"after": "if (first) const_cast<TA*>(a)[-3] = TA();"}, "outside the output"),
    "counters left behind": ({"after": "if (first) counters[2] = 1;"}, "counters were left non-zero"),
    "workspace overrun": ({"after": "if (first) workspace[250] = 0.f;"}, "outside the output"),
    "workspace taken for zero": ({"spoil": "acc += workspace[0];"}, "compared elements are wrong"),
    "input read beyond its end": ({"spoil": "if (last) acc += 0.f * hw::to_float(a[(i64)m * lda]);"}, "nan where"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(engine: Any, planted: Callable[..., Job], fault: str) -> None:
    changes, said = FAULTS[fault]
    report = engine.run(planted(Gemm(100, 71, 50, "bf16"), **changes, measure=False))
    assert report.outcome is Outcome.WRONG, report
    assert said in report.detail
    assert report.verification is not None
    assert not report.verification.passed
    assert not engine.spent
    after = engine.run(planted(Gemm(100, 71, 50, "bf16"), measure=False))
    assert after.outcome is Outcome.CORRECT, f"The fault was held against the next kernel: {after.detail}"


def test_a_k_tail_masked_in_one_operand_alone_is_caught(engine: Any, planted: Callable[..., Job]) -> None:
    """Finite values of the next row times zero hide it; NaN and infinity do not."""
    spoil = "for (int k = K; k < K + 6; k++) if (row + 1 < m) acc += hw::to_float(a[(i64)row * lda + k]) * 0.f;"
    report = engine.run(planted(Gemm(100, 71, 50, "bf16"), spoil=spoil, measure=False))
    assert report.outcome is Outcome.WRONG
    assert "With NaN and infinities among the inputs" in report.detail


def test_padding_between_rows_is_watched(engine: Any, planted: Callable[..., Job]) -> None:
    after = "if (row == 4 && column == N - 1) d[(i64)row * ldd + N] = hw::from_float<TD>(0.f);"
    report = engine.run(planted(Gemm(60, 40, 32, "fp16", ldd=44), after=after, measure=False))
    assert report.outcome is Outcome.WRONG
    assert "2 bytes outside" in report.detail


def test_a_fault_at_one_row_alone_is_caught_by_the_small_m(engine: Any, planted: Callable[..., Job]) -> None:
    report = engine.run(planted(Gemm(200, 40, 32, "fp16"), spoil="if (m == 1) acc += 3.f;", measure=False))
    assert report.outcome is Outcome.WRONG
    assert "With m=1," in report.detail


def test_a_large_output_is_sampled_with_its_edges(engine: Any, planted: Callable[..., Job]) -> None:
    problem = Gemm(20_000, 9_000, 2_000, "bf16")
    right = engine.run(planted(problem, measure=False))
    assert right.outcome is Outcome.CORRECT, right.detail
    assert 0 < right.verification.coverage <= 1
    corner = engine.run(planted(problem, spoil="if (last) acc += 9.f;", measure=False))
    assert corner.outcome is Outcome.WRONG
    assert "row 19999, column 8999" in corner.detail


def test_inputs_are_fresh_for_every_seed(engine: Any, planted: Callable[..., Job]) -> None:
    job = planted(Gemm(40, 40, 40, "fp32"), measure=False)
    errors = {engine.run(replace(job, seed=seed)).verification.rel_error for seed in range(4)}
    assert len(errors) == 4
    assert engine.run(job).verification.rel_error == engine.run(job).verification.rel_error


def test_a_kernel_whose_m_is_compiled_in_is_verified_at_that_m(engine: Any, planted: Callable[..., Job]) -> None:
    constants = {"n": 40, "k": 40, "m": 70}
    report = engine.run(planted(Gemm(70, 40, 40), recipe={"constants": constants}, measure=False))
    assert report.outcome is Outcome.CORRECT
    assert len(report.verification.checks) == 2


def test_launch_refusals_are_reports(engine: Any, planted: Callable[..., Job]) -> None:
    problem = Gemm(32, 32, 32)
    for recipe, said in (
        ({"constants": {"n": 33, "k": 32}}, "compiled in"),
        ({"dynamic_shared": 2**19}, "cannot be loaded"),
    ):
        report = engine.run(planted(problem, recipe=recipe))
        assert report.outcome is Outcome.LAUNCH
        assert said in report.detail
    job = planted(problem)
    broken = replace(job, kernel=replace(job.kernel, cubin=job.kernel.cubin[:100]))
    assert engine.run(broken).outcome is Outcome.LAUNCH
    assert not engine.spent
    assert engine.run(replace(job, measure=False)).outcome is Outcome.CORRECT


def test_too_large_a_problem_is_out_of_memory_and_the_engine_goes_on(engine: Any, planted: Callable[..., Job]) -> None:
    report = engine.run(planted(Gemm(2**20, 2**20, 16, "fp32"), measure=False))
    assert report.outcome is Outcome.OUT_OF_MEMORY
    assert engine.run(planted(Gemm(32, 32, 32), measure=False)).outcome is Outcome.CORRECT
