"""The verification law: right results pass, any single wrong element does not, and NaN and infinity follow IEEE."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.device import verify
from gemmtune.space.dtypes import DTYPES
from gemmtune.space.gemm import Gemm
from gemmtune.space.problem import ErrorBound

BOUND = ErrorBound(accumulation=1e-5, rounding=2.0**-9)


def case(seed: int, shape: tuple[int, int] = (9, 7)) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal(shape)
    return reference, np.abs(reference) + rng.random(shape) * 10


def right(problem: Gemm, seed: int) -> tuple[Any, Any, Any]:
    """What a correct kernel gives: fp32 accumulation, rounded to the output type."""
    arrays = problem.inputs(seed)
    rows, columns = np.arange(problem.m), np.arange(problem.n)
    reference, scale = problem.reference(arrays, rows, columns)
    with np.errstate(over="ignore"):
        return reference.astype(np.float32).astype(problem.out.np), reference, scale


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 20), n=st.integers(1, 20), k=st.integers(1, 60), seed=st.integers(0, 2**31),
    dtype=st.sampled_from(sorted(DTYPES)), out=st.sampled_from(["fp32", "fp16", "bf16"]),
    epilogue=st.sampled_from(["identity", "alpha_beta", "bias"]),
)  # fmt: skip
def test_correct_results_pass_in_every_type(
    m: int, n: int, k: int, seed: int, dtype: str, out: str, epilogue: str
) -> None:
    problem = Gemm(m, n, k, dtype=dtype, out_dtype=out, epilogue=epilogue)
    d, reference, scale = right(problem, seed)
    result = verify.compare(d, reference, scale, problem.error_bound(), limits=verify.Limits.of(problem.out))
    assert result.passed, result.detail
    assert result.excess <= 1
    assert result.rel_error <= problem.error_bound().relative
    assert result.compared == m * n


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), row=st.integers(0, 8), column=st.integers(0, 6), sign=st.sampled_from([-1, 1]))
def test_one_element_beyond_its_bound_fails_and_is_named(seed: int, row: int, column: int, sign: int) -> None:
    reference, scale = case(seed)
    tolerance = BOUND.accumulation * scale + BOUND.rounding * np.abs(reference)
    d = reference.copy()
    d[row, column] += sign * 1.01 * tolerance[row, column]
    result = verify.compare(d, reference, scale, BOUND)
    assert not result.passed
    assert result.worst == (row, column)
    assert f"row {row}, column {column}" in result.detail
    d[row, column] = reference[row, column] + sign * 0.99 * tolerance[row, column]
    assert verify.compare(d, reference, scale, BOUND).passed


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), factor=st.floats(0.001, 1000))
def test_the_excess_is_linear_in_the_error(seed: int, factor: float) -> None:
    reference, scale = case(seed)
    tolerance = BOUND.accumulation * scale + BOUND.rounding * np.abs(reference)
    result = verify.compare(reference + factor * tolerance, reference, scale, BOUND)
    assert math.isclose(result.excess, factor, rel_tol=1e-6)
    assert result.passed == (result.excess <= 1)


def test_a_zero_scale_admits_only_the_exact_value() -> None:
    zero = np.zeros((2, 2))
    assert verify.compare(zero, zero, zero, BOUND).passed
    assert verify.compare(-zero, zero, zero, BOUND).passed
    d = zero.copy()
    d[1, 0] = 1e-300
    result = verify.compare(d, zero, zero, BOUND)
    assert result.excess == math.inf
    assert not result.passed


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_must_be_where_the_reference_has_them(special: float) -> None:
    reference, scale = case(1)
    with_special, its_scale = reference.copy(), scale.copy()
    with_special[2, 3], its_scale[2, 3] = special, abs(special)
    assert verify.compare(with_special, with_special, its_scale, BOUND).passed
    for d, ref, size in ((with_special, reference, scale), (reference, with_special, its_scale)):
        result = verify.compare(d, ref, size, BOUND)
        assert not result.passed
        assert result.mismatches == 1
        assert result.worst == (2, 3)
    assert not verify.compare(-with_special, with_special, its_scale, BOUND).passed or math.isnan(special)


def test_overflow_of_the_output_type_is_infinity() -> None:
    limits = verify.Limits.of(DTYPES["fp16"])
    reference = np.array([[1e6, -1e6, 65504.0, 65519.0, 65520.0]])
    scale = np.abs(reference)
    with np.errstate(over="ignore"):
        d = reference.astype(np.float16)
    bound = ErrorBound(1e-6, 2.0**-11)
    assert verify.compare(d, reference, scale, bound, limits=limits).passed
    saturated = np.clip(reference, -65504, 65504)
    assert not verify.compare(saturated, reference, scale, bound, limits=limits).passed
    assert not verify.compare(-d, reference, scale, bound, limits=limits).passed


def test_rounding_below_the_normal_range_passes() -> None:
    reference = np.array([[1e-6, 3.1e-8, -2.9e-8, 6e-5]])
    d = reference.astype(np.float16)
    bound = ErrorBound(2e-6, 2.0**-11)
    assert not verify.compare(d, reference, np.abs(reference), bound).passed
    assert verify.compare(d, reference, np.abs(reference), bound, limits=verify.Limits.of(DTYPES["fp16"])).passed


def test_rows_and_columns_name_the_place_in_the_whole_output() -> None:
    reference, scale = case(3, (2, 3))
    d = reference.copy()
    d[1, 2] = math.nan
    result = verify.compare(d, reference, scale, BOUND, rows=np.array([5, 900]), columns=np.array([0, 10, 77]))
    assert result.worst == (900, 77)
    assert "not written" in result.detail


def test_empty_and_mismatched_shapes() -> None:
    empty = np.zeros((0, 4))
    assert verify.compare(empty, empty, empty, BOUND).passed
    with pytest.raises(ValueError, match="one 2-D shape"):
        verify.compare(np.zeros((2, 3)), np.zeros((3, 2)), np.zeros((3, 2)), BOUND)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_poison_is_a_nan_that_arithmetic_does_not_make(name: str) -> None:
    buffer = np.zeros(16, DTYPES[name].np)
    assert verify.unwritten(buffer) == 0
    verify.poison(buffer)
    assert verify.unwritten(buffer) == 16
    assert np.isnan(buffer.astype(np.float64)).all()
    buffer[3] = 1.5
    assert verify.unwritten(buffer) == 15
    assert verify.unwritten(buffer[:0]) == 0


@settings(max_examples=40, deadline=None)
@given(nbytes=st.integers(0, 300), offset=st.integers(-64, 400), guard=st.sampled_from([64, 256]))
def test_guards_see_exactly_the_writes_outside_the_payload(nbytes: int, offset: int, guard: int) -> None:
    buffer = verify.GuardedBuffer(nbytes, guard)
    assert buffer.payload.size == nbytes
    assert nbytes == 0 or buffer.payload.ctypes.data % 256 == 0
    buffer.payload[:] = 7
    assert buffer.damage() == ""
    offset = min(offset, nbytes + guard - 1)
    buffer._whole[buffer._start + offset] = 0
    inside = 0 <= offset < nbytes
    assert (buffer.damage() == "") == inside
    if offset < 0:
        assert f"{-offset} bytes ahead" in buffer.damage()
    elif not inside:
        assert f"{offset - nbytes} bytes behind" in buffer.damage()


def test_padding_between_rows_is_watched() -> None:
    flat = np.zeros(3 * 8, np.float32)
    verify.poison(flat)
    for row in range(3):
        flat[row * 8 : row * 8 + 5] = row
    assert verify.padding_damage(flat, (3, 5), 8) == 0
    flat[1 * 8 + 6] = 0
    assert verify.padding_damage(flat, (3, 5), 8) == 1
    assert verify.padding_damage(flat[:15], (3, 5), 5) == 0


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 5000), count=st.integers(1, 400), seed=st.integers(0, 2**31))
def test_a_sample_of_an_axis_is_sorted_unique_and_holds_the_edges(size: int, count: int, seed: int) -> None:
    picked = verify.sample_axis(size, count, np.random.default_rng(seed))
    assert len(picked) == min(size, count)
    assert (np.diff(picked) > 0).all()
    assert picked[0] == 0
    assert picked[-1] < size
    if count >= 4:
        assert {0, size - 1, min(1, size - 1), max(0, size - 2)} <= set(picked.tolist())


@settings(max_examples=40, deadline=None)
@given(m=st.integers(1, 3000), n=st.integers(1, 3000), seed=st.integers(0, 1000))
def test_small_problems_are_compared_whole_and_large_ones_within_the_limit(m: int, n: int, seed: int) -> None:
    rows, columns = verify.sample_indices(Gemm(m, n, 8), seed, limit=10_000)
    if m * n <= 10_000:
        assert (len(rows), len(columns)) == (m, n)
    else:
        assert len(rows) * len(columns) <= 10_000
        assert len(rows) * len(columns) > 4_000
        again = verify.sample_indices(Gemm(m, n, 8), seed, limit=10_000)
        assert (rows == again[0]).all()
        assert (columns == again[1]).all()
