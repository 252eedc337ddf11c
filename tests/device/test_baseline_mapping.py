"""The baseline's calls against a column-major GemmEx in NumPy: every layout, pitch, type and epilogue maps rightly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from host_libraries import HostBlas, HostCupy, HostFinish, HostMemory, Placed
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.device import baselines, cublas
from gemmtune.device.baselines import CublasGemm, baseline_for, register_baseline
from gemmtune.device.cublas import COMPUTE_32F, COMPUTE_32F_FAST_TF32, Handle
from gemmtune.space.errors import LaunchError, UnsupportedError
from gemmtune.space.gemm import LAYOUTS, Gemm


@pytest.fixture
def blas(monkeypatch: pytest.MonkeyPatch) -> HostBlas:
    monkeypatch.setattr(baselines, "Finish", HostFinish)
    monkeypatch.setattr(baselines, "allocate", HostMemory)
    monkeypatch.setattr(baselines, "require_cupy", lambda: HostCupy)
    return HostBlas()


def run(problem: Gemm, blas: HostBlas, seed: int = 0) -> tuple[Any, Any, Any]:
    placed = Placed(problem, seed)
    handle = Handle(blas, 9, workspace=(123, 456))
    CublasGemm(problem, lambda stream: handle).launch(placed.pointers, 9, placed.scalars)
    return placed.d, *placed.reference()


@settings(max_examples=150, deadline=None)
@given(
    m=st.integers(1, 9), n=st.integers(1, 9), k=st.integers(1, 9), layout=st.sampled_from(LAYOUTS),
    dtype=st.sampled_from(["fp32", "tf32", "fp16", "bf16"]), b_dtype=st.sampled_from(["", "fp32", "fp16", "bf16"]),
    out=st.sampled_from(["fp32", "fp16", "bf16"]), epilogue=st.sampled_from(["identity", "alpha_beta", "bias"]),
    pad=st.tuples(*[st.integers(0, 3)] * 3), seed=st.integers(0, 2**20),
)  # fmt: skip
def test_the_baseline_computes_the_problem(
    m: int,
    n: int,
    k: int,
    layout: str,
    dtype: str,
    b_dtype: str,
    out: str,
    epilogue: str,
    pad: tuple[int, ...],
    seed: int,
) -> None:
    plain = Gemm(m, n, k, dtype, out, layout, epilogue, b_dtype=b_dtype)
    pitches = [
        t.ld + extra
        for t, extra in zip([plain.tensors()[0], plain.tensors()[1], plain.tensors()[-1]], pad, strict=True)
    ]
    problem = Gemm(m, n, k, dtype, out, layout, epilogue, *pitches, b_dtype=b_dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baselines, "Finish", HostFinish)
        patch.setattr(baselines, "allocate", HostMemory)
        patch.setattr(baselines, "require_cupy", lambda: HostCupy)
        got, reference, scale = run(problem, HostBlas(), seed)
    u = problem.out.roundoff
    assert (np.abs(got - reference) <= 4 * u * scale + 2.0**-22 * scale + 2.0**-24).all()  # unfused: rounded twice


def test_a_single_row_is_added_to_its_bias_and_rounded_once(blas: HostBlas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "Finish", None)  # no second kernel
    problem = Gemm(1, 24, 40, "bf16", epilogue="bias", ldd=32)
    got, reference, scale = run(problem, blas)
    assert (np.abs(got - reference) <= problem.out.roundoff * np.abs(reference) + 2.0**-22 * scale).all()


def test_compute_types_workspace_and_math_mode(blas: HostBlas) -> None:
    run(Gemm(4, 4, 4, "fp32"), blas)
    run(Gemm(4, 4, 4, "tf32"), blas)
    run(Gemm(4, 4, 4, "bf16"), blas)
    assert blas.computes == [COMPUTE_32F, COMPUTE_32F_FAST_TF32, COMPUTE_32F]
    assert blas.workspace == (123, 456)
    assert blas.mode & 3 == 0  # neither TF32 for all nor pedantic
    assert blas.mode & 16  # no reduction in half precision


def test_refusals_are_launch_errors(blas: HostBlas) -> None:
    with pytest.raises(LaunchError, match="address of 'd'"):
        CublasGemm(Gemm(4, 4, 4), lambda stream: Handle(blas, 0, (1, 1))).launch({"a": 1, "b": 2})
    blas.cublasGemmEx = lambda *_: 13  # type: ignore[method-assign]
    with pytest.raises(LaunchError, match=r"4x4x4.*execution failed"):
        run(Gemm(4, 4, 4), blas)
    with pytest.raises(LaunchError, match="below"):
        cublas.GemmCall("nt", (1, 1, 2**31), (2**31, 2**31, 1), ("float32",) * 3, COMPUTE_32F)


def test_the_registry_knows_gemm_and_what_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    assert baseline_for(Gemm(4, 4, 4)).name == "cublas"
    monkeypatch.setattr(baselines, "_REGISTRY", dict(baselines._REGISTRY))

    class Other(Gemm):
        kind = "other"

    with pytest.raises(UnsupportedError, match="'other' have no baseline"):
        baseline_for(Other(1, 1, 1))
    register_baseline("other", lambda problem: CublasGemm(problem))  # type: ignore[arg-type]
    assert baseline_for(Other(1, 1, 1)).name == "cublas"
