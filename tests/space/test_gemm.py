"""The GEMM problem: validation, keys, JSON, and the reference against sums written out."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.space.dtypes import DTYPES, dtype
from gemmtune.space.epilogue import EPILOGUES, epilogue
from gemmtune.space.errors import ProblemError, UnknownNameError
from gemmtune.space.gemm import LAYOUTS, OUTPUTS, Gemm
from gemmtune.space.problem import Problem, problem_from_json

SIZES = st.integers(1, 9)
PADS = st.integers(0, 5)


@st.composite
def gemms(draw: st.DrawFn) -> Gemm:
    m, n, k = draw(SIZES), draw(SIZES), draw(SIZES)
    layout = draw(st.sampled_from(LAYOUTS))
    return Gemm(
        m, n, k,
        dtype=draw(st.sampled_from(sorted(DTYPES))),
        out_dtype=draw(st.sampled_from(["", *OUTPUTS])),
        layout=layout,
        epilogue=draw(st.sampled_from(sorted(EPILOGUES))),
        lda=(k if layout[0] == "n" else m) + draw(PADS),
        ldb=(n if layout[1] == "n" else k) + draw(PADS),
        ldd=n + draw(PADS),
        b_dtype=draw(st.sampled_from(["", *DTYPES])),
    )  # fmt: skip


def written_out(p: Gemm, arrays: dict[str, Any], i: int, j: int) -> tuple[float, float]:
    """One output and its scale, as the formula in the epilogue table says."""
    total = scale = 0.0
    for q in range(p.k):
        a = float(arrays["a"][i, q] if p.layout[0] == "n" else arrays["a"][q, i])
        b = float(arrays["b"][q, j] if p.layout[1] == "n" else arrays["b"][j, q])
        total += a * b
        scale += abs(a) * abs(b)
    if p.epilogue == "alpha_beta":
        alpha, beta, c = float(arrays["alpha"]), float(arrays["beta"]), float(arrays["c"][i, j])
        return alpha * total + beta * c, abs(alpha) * scale + abs(beta * c)
    if p.epilogue == "bias":
        bias = float(arrays["bias"][0, j])
        return total + bias, scale + abs(bias)
    return total, scale


@given(gemms())
def test_json_and_equality(p: Gemm) -> None:
    back = problem_from_json(json.loads(json.dumps(p.to_json())))
    assert back == p
    assert back.key == p.key
    assert hash(back) == hash(p)
    assert isinstance(p, Problem)


@given(gemms(), gemms())
def test_equal_keys_mean_equal_problems(p: Gemm, q: Gemm) -> None:
    assert (p.key == q.key) == (p == q)


@given(gemms(), st.integers(0, 2**32))
def test_reference_is_the_sum_written_out(p: Gemm, seed: int) -> None:
    arrays = p.inputs(seed)
    d, scale = p.reference(arrays, np.arange(p.m), np.arange(p.n))
    assert d.dtype == scale.dtype == np.float64
    for i in range(p.m):
        for j in range(p.n):
            expected, expected_scale = written_out(p, arrays, i, j)
            assert d[i, j] == pytest.approx(expected, rel=1e-12, abs=1e-12 * expected_scale)
            assert scale[i, j] == pytest.approx(expected_scale, rel=1e-12)


@given(gemms(), st.data())
def test_reference_of_some_rows_and_columns(p: Gemm, data: st.DataObject) -> None:
    arrays = p.inputs(1)
    rows = np.array(data.draw(st.lists(st.integers(0, p.m - 1), min_size=1, max_size=4)))
    columns = np.array(data.draw(st.lists(st.integers(0, p.n - 1), min_size=1, max_size=4)))
    whole = p.reference(arrays, np.arange(p.m), np.arange(p.n))
    part = p.reference(arrays, rows, columns)
    for some, every in zip(part, whole, strict=True):
        np.testing.assert_allclose(some, every[np.ix_(rows, columns)], rtol=1e-12, atol=1e-14)


@given(gemms())
def test_inputs_are_stored_as_described(p: Gemm) -> None:
    arrays, again = p.inputs(3), p.inputs(3)
    for t in p.tensors():
        if not t.output:
            assert arrays[t.name].shape == t.shape
            assert arrays[t.name].dtype == t.dtype.np
            assert np.array_equal(arrays[t.name], again[t.name])
    assert set(arrays) == {t.name for t in p.tensors() if not t.output} | set(p.epi.scalars)
    assert p.tensors()[-1].output
    assert p.bytes == sum(t.shape[0] * t.shape[1] * t.dtype.np.itemsize for t in p.tensors())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_pass_through(layout: str, value: float) -> None:
    p = Gemm(3, 4, 5, "fp32", layout=layout)
    arrays = p.inputs(0)
    arrays["a"][(1, 2) if layout[0] == "n" else (2, 1)] = value
    d, _ = p.reference(arrays, np.arange(3), np.arange(4))
    assert np.isfinite(d[[0, 2]]).all()
    for j in range(4):
        np.testing.assert_equal(d[1, j], written_out(p, arrays, 1, j)[0])


def test_infinity_times_zero_is_nan() -> None:
    p = Gemm(1, 1, 1, "fp32")
    d, _ = p.reference({"a": np.array([[np.inf]]), "b": np.array([[0.0]])}, np.arange(1), np.arange(1))
    assert np.isnan(d).all()


def test_beta_zero_ignores_c() -> None:
    p = Gemm(2, 2, 2, "fp32", epilogue="alpha_beta")
    arrays = p.inputs(0)
    arrays["c"][:] = np.nan
    arrays["beta"] = np.asarray(0.0, np.float32)
    d, scale = p.reference(arrays, np.arange(2), np.arange(2))
    assert np.isfinite(d).all()
    assert np.isfinite(scale).all()


@pytest.mark.parametrize("size", [0, -1, 1.5, "4", None, True, 2.0])
@pytest.mark.parametrize("axis", ["m", "n", "k"])
def test_bad_sizes_are_refused(axis: str, size: Any) -> None:
    sizes: dict[str, Any] = {"m": 4, "n": 4, "k": 4, axis: size}
    with pytest.raises(ProblemError, match=f"Size {axis} must be"):
        Gemm(**sizes)


def test_offsets_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ProblemError, match=r"2\*\*63"):
        Gemm(2**31, 2**31, 2**31)
    Gemm(2**30, 8, 2**30)


@pytest.mark.parametrize(
    ("name", "value"),
    [("dtype", "fp7"), ("out_dtype", "tf32"), ("b_dtype", "x"), ("layout", "tn2"), ("layout", ""),
     ("epilogue", "gelu7"), ("lda", 3), ("ldb", -1), ("ldd", 2.5), ("ldd", True)],
)  # fmt: skip
def test_bad_fields_are_refused(name: str, value: Any) -> None:
    fields: dict[str, Any] = {name: value}
    with pytest.raises(ProblemError):
        Gemm(4, 4, 4, **fields)


def test_json_of_others_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="gemm"):
        problem_from_json({"kind": "conv", "m": 1})
    with pytest.raises(UnknownNameError):
        problem_from_json({})
    with pytest.raises(ProblemError):
        problem_from_json({"kind": "gemm", "m": 1, "n": 1})
    with pytest.raises(ProblemError):
        problem_from_json({"kind": "gemm", "m": 1, "n": 1, "k": 1, "batch": 2})


def test_key_says_what_differs_from_the_defaults() -> None:
    assert Gemm(512, 256, 128).key == "gemm 512x256x128 bf16 nt"
    assert Gemm(4, 4, 4, lda=4, ldb=4, ldd=4) == Gemm(4, 4, 4)
    p = Gemm(4, 4, 4, "fp16", "fp32", "tn", "bias", ldd=9)
    assert p.key == "gemm 4x4x4 fp16 tn out=fp32 epilogue=bias ldd=9"
    assert str(p) == p.key


def test_other_sizes() -> None:
    p = Gemm(8, 8, 8, ldd=12)
    assert p.with_axes(m=3) == Gemm(3, 8, 8, ldd=12)
    assert p.with_axes(n=20) == Gemm(8, 20, 8)
    with pytest.raises(ProblemError, match="batch"):
        p.with_axes(batch=2)
    with pytest.raises(ProblemError):
        p.with_axes(m=0)


def test_bound_grows_with_k_and_coarser_output() -> None:
    def bound(k: int, name: str, out: str = "") -> float:
        return Gemm(8, 8, k, name, out).error_bound().relative

    assert bound(64, "fp32") < bound(4096, "fp32") < bound(4096, "tf32")
    assert bound(64, "fp32") < bound(64, "fp16") < bound(64, "bf16")
    assert bound(64, "bf16", "fp32") < bound(64, "bf16")


@given(st.integers(1, 400), st.sampled_from(["fp32", "fp16", "bf16"]), st.integers(0, 1000))
def test_bound_admits_a_right_fp32_sum_and_no_dropped_product(k: int, name: str, seed: int) -> None:
    p = Gemm(4, 4, k, name, "fp32")
    arrays = p.inputs(seed)
    a, b = arrays["a"].astype(np.float32), arrays["b"].astype(np.float32)
    d = np.zeros((4, 4), np.float32)
    for q in range(k):
        d += np.outer(a[:, q], b[:, q])
    reference, scale = p.reference(arrays, np.arange(4), np.arange(4))
    bound = p.error_bound()
    allowed = bound.accumulation * scale + bound.rounding * np.abs(reference)
    assert (np.abs(d - reference) <= allowed).all()
    dropped = d - np.outer(a[:, -1], b[:, -1])
    if k > 1:
        assert (np.abs(dropped - reference) > allowed).any()


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(UnknownNameError, match="bf16"):
        dtype("fp3")
    with pytest.raises(UnknownNameError, match="identity"):
        epilogue("tanh")


def test_dtypes_match_their_storage() -> None:
    for t in DTYPES.values():
        assert t.np.itemsize == t.bytes
