"""The baseline's calls against a column-major GemmEx in NumPy: every layout, pitch, type and epilogue maps rightly."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.device import baselines, cublas
from gemmtune.device.baselines import CublasGemm, baseline_for, register_baseline
from gemmtune.device.cublas import COMPUTE_32F, COMPUTE_32F_FAST_TF32, Handle
from gemmtune.space.errors import LaunchError, UnsupportedError
from gemmtune.space.gemm import LAYOUTS, Gemm

TYPES: dict[int, Any] = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}
NAMES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def value(argument: Any) -> Any:
    return argument.value if hasattr(argument, "value") else argument


def column_major(address: int, rows: int, columns: int, ld: int, dtype: Any) -> Any:
    """A view of host memory as a column-major matrix."""
    count = (columns - 1) * ld + rows
    size = np.dtype(dtype).itemsize
    flat = np.frombuffer((ctypes.c_char * (count * size)).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (size, ld * size), writeable=True)


class HostBlas:
    """cuBLAS as its documentation defines it, on host memory."""

    def __init__(self) -> None:
        self.computes: list[int] = []

    def cublasCreate_v2(self, handle: Any) -> int:
        return 0

    def cublasSetStream_v2(self, handle: Any, stream: Any) -> int:
        self.workspace = None  # as cuBLAS does
        return 0

    def cublasSetWorkspace_v2(self, handle: Any, address: Any, size: Any) -> int:
        self.workspace = value(address), value(size)
        return 0

    def cublasSetMathMode(self, handle: Any, mode: int) -> int:
        self.mode = mode
        return 0

    def cublasGemmEx(self, *arguments: Any) -> int:
        (_, ta, tb, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, compute, _) = map(
            value, arguments
        )
        scalar = ctypes.c_double if compute == 70 else ctypes.c_float
        if b_type != a_type or (c_type != a_type and c_type != 0):
            return 15
        left = column_major(a, *((k, m) if ta else (m, k)), lda, TYPES[a_type])
        right = column_major(b, *((n, k) if tb else (k, n)), ldb, TYPES[b_type])
        out = column_major(c, m, n, ldc, TYPES[c_type])
        left, right = left.astype(np.float64), right.astype(np.float64)
        product = (left.T if ta else left) @ (right.T if tb else right)
        result = scalar.from_address(alpha).value * product
        if scalar.from_address(beta).value:
            result += scalar.from_address(beta).value * out.astype(np.float64)
        out[...] = result.astype(out.dtype)
        self.computes.append(compute)
        return 0


class HostFinish:
    """The elementwise kernel, in NumPy."""

    def __init__(self, shape: Any, source: Any, target: Any, beta: float = 0.0) -> None:
        self.shape, self.source, self.target, self.beta = shape, source, target, beta

    def launch(self, stream: int, x: int, d: int, c: int = 0, bias: int = 0) -> None:
        (m, n), (x_type, ldx), (d_type, ldd) = self.shape, self.source, self.target
        result = column_major(x, n, m, ldx, NAMES[x_type]).T.astype(np.float32)
        if c:
            result = result + np.float32(self.beta) * column_major(c, n, m, ldd, NAMES[d_type]).T.astype(np.float32)
        if bias:
            result = result + column_major(bias, n, 1, n, NAMES[d_type]).T.astype(np.float32)
        column_major(d, n, m, ldd, NAMES[d_type]).T[...] = result.astype(NAMES[d_type])


class HostMemory:
    def __init__(self, size: int) -> None:
        self._buffer = ctypes.create_string_buffer(size)
        self.ptr = ctypes.addressof(self._buffer)


class HostCupy:
    class cuda:
        class runtime:
            memcpyDeviceToDevice = 3

            @staticmethod
            def getDevice() -> int:
                return 0

            @staticmethod
            def memcpy2DAsync(
                dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, k: int, s: int
            ) -> None:
                for row in range(height):
                    ctypes.memmove(dst + row * dpitch, src + row * spitch, width)


@pytest.fixture
def blas(monkeypatch: pytest.MonkeyPatch) -> HostBlas:
    monkeypatch.setattr(baselines, "Finish", HostFinish)
    monkeypatch.setattr(baselines, "allocate", HostMemory)
    monkeypatch.setattr(baselines, "require_cupy", lambda: HostCupy)
    return HostBlas()


def run(problem: Gemm, blas: HostBlas, seed: int = 0) -> tuple[Any, Any, Any]:
    arrays = problem.inputs(seed)
    pitched, keep, pointers = {}, [], {}
    for t in problem.tensors():
        flat = np.full(t.shape[0] * t.ld, np.nan, np.float32).astype(t.dtype.np)
        view = flat.reshape(t.shape[0], t.ld)[:, : t.shape[1]]
        if not t.output:
            view[...] = arrays[t.name]
        keep.append(flat)
        pitched[t.name], pointers[t.name] = view, flat.ctypes.data
    handle = Handle(blas, 9, workspace=(123, 456))
    scalars = {name: float(arrays[name]) for name in problem.epi.scalars}
    CublasGemm(problem, lambda stream: handle).launch(pointers, 9, scalars)
    reference, scale = problem.reference(arrays, np.arange(problem.m), np.arange(problem.n))
    return pitched["d"].astype(np.float64), reference, scale


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
