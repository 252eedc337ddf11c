"""The calls to cuBLASLt against a column-major matmul in NumPy: layouts, pitches, types and epilogues map rightly."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.device.cublas import COMPUTE_32F, COMPUTE_32F_FAST_TF32
from gemmtune.device.cublaslt import REQUESTED, Heuristic, LtGemm, unsupported
from gemmtune.space.errors import LaunchError, UnsupportedError
from gemmtune.space.gemm import LAYOUTS, Gemm

TYPES: dict[int, Any] = {0: np.float32, 2: np.float16, 14: ml_dtypes.bfloat16}


def number(argument: Any) -> Any:
    return argument.value if hasattr(argument, "value") else argument


def behind(reference: Any) -> Any:
    return reference._obj


def column_major(address: int, rows: int, columns: int, ld: int, dtype: Any) -> Any:
    size = np.dtype(dtype).itemsize
    flat = np.frombuffer((ctypes.c_char * (((columns - 1) * ld + rows) * size)).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (size, ld * size), writeable=True)


class HostLt:
    """cuBLASLt as its documentation defines it, on host memory; its objects are numbers."""

    def __init__(self, algorithms: int = 20, usable: int = 99) -> None:
        self.algorithms, self.usable = algorithms, usable
        self.layouts: dict[int, tuple[int, int, int, int]] = {}
        self.descs: dict[int, dict[int, int]] = {}
        self.preferences: dict[int, dict[int, int]] = {}
        self.alive: set[int] = set()
        self.computes: list[int] = []
        self.chosen: list[int] = []
        self._next = 100

    def _new(self, out: Any) -> int:
        self._next += 1
        behind(out).value = self._next
        self.alive.add(self._next)
        return self._next

    def _gone(self, made: Any) -> int:
        self.alive.remove(made.value)
        return 0

    cublasLtDestroy = cublasLtMatmulDescDestroy = cublasLtMatrixLayoutDestroy = _gone
    cublasLtMatmulPreferenceDestroy = _gone

    def cublasLtCreate(self, out: Any) -> int:
        self._new(out)
        return 0

    def cublasLtMatmulDescCreate(self, out: Any, compute: Any, scale: Any) -> int:
        assert scale.value == 0
        self.computes.append(compute.value)
        self.descs[self._new(out)] = {}
        return 0

    def cublasLtMatrixLayoutCreate(self, out: Any, kind: Any, rows: Any, columns: Any, ld: Any) -> int:
        assert ld.value >= rows.value
        self.layouts[self._new(out)] = (kind.value, rows.value, columns.value, ld.value)
        return 0

    def cublasLtMatmulPreferenceCreate(self, out: Any) -> int:
        self.preferences[self._new(out)] = {}
        return 0

    def cublasLtMatmulDescSetAttribute(self, desc: Any, which: Any, value: Any, size: Any) -> int:
        assert size.value == {3: 4, 4: 4, 7: 4, 8: 8}[which.value]
        self.descs[desc.value][which.value] = behind(value).value
        return 0

    def cublasLtMatmulPreferenceSetAttribute(self, made: Any, which: Any, value: Any, size: Any) -> int:
        assert size.value == {1: 8}.get(which.value, 4)
        self.preferences[made.value][which.value] = behind(value).value
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, *arguments: Any) -> int:
        _, _, _, _, _, _, preference, count, found, returned = arguments
        self.preference = self.preferences[preference.value]
        behind(returned).value = min(count.value, self.algorithms)
        for index in range(min(count.value, self.algorithms)):
            found[index].algorithm[0] = index
            found[index].state = 0 if index < self.usable else 15
            found[index].workspace = 1024 * index
        return 0

    def cublasLtMatmul(self, *arguments: Any) -> int:
        _, desc, alpha, a, la, b, lb, beta, c, lc, d, ld, algorithm, _, _, _ = arguments
        attributes = self.descs[desc.value]
        operands = []
        for address, layout, which in ((a, la, 3), (b, lb, 4)):
            kind, rows, columns, pitch = self.layouts[layout.value]
            x = column_major(address.value, rows, columns, pitch, TYPES[kind]).astype(np.float64)
            operands.append(x.T if attributes[which] else x)
        kind, rows, columns, pitch = self.layouts[ld.value]
        assert self.layouts[lc.value] == self.layouts[ld.value]
        result = behind(alpha).value * (operands[0] @ operands[1])
        if behind(beta).value:
            result += behind(beta).value * column_major(c.value, rows, columns, pitch, TYPES[kind]).astype(np.float64)
        if attributes.get(7) == 4:
            bias = column_major(attributes[8], rows, 1, rows, TYPES[kind])
            result += bias.astype(np.float64)
        out = column_major(d.value, rows, columns, pitch, TYPES[kind])
        out[...] = result.astype(out.dtype)
        self.chosen.append(behind(algorithm).algorithm[0])
        return 0


def run(problem: Gemm, lib: HostLt, seed: int = 0) -> tuple[Any, Any, Any, LtGemm]:
    arrays = problem.inputs(seed)
    keep, pointers, views = [], {}, {}
    for t in problem.tensors():
        flat = np.full(t.shape[0] * t.ld, np.nan, np.float32).astype(t.dtype.np)
        view = flat.reshape(t.shape[0], t.ld)[:, : t.shape[1]]
        if not t.output:
            view[...] = arrays[t.name]
        keep.append(flat)
        views[t.name], pointers[t.name] = view, flat.ctypes.data
    scalars = {name: float(arrays[name]) for name in problem.epi.scalars}
    gemm = LtGemm(problem, scalars, lib, workspace=(512, 2**25))
    gemm.launch(gemm.heuristics(pointers)[0], pointers, 7)
    reference, scale = problem.reference(arrays, np.arange(problem.m), np.arange(problem.n))
    return views["d"].astype(np.float64), reference, scale, gemm


@settings(max_examples=100, deadline=None)
@given(
    m=st.integers(1, 9), n=st.integers(1, 9), k=st.integers(1, 9), layout=st.sampled_from(LAYOUTS),
    types=st.sampled_from(
        [("fp32", "fp32"), ("tf32", "fp32"), ("fp16", "fp16"), ("bf16", "bf16"), ("fp16", "fp32"), ("bf16", "fp32")]
    ),
    epilogue=st.sampled_from(["identity", "alpha_beta", "bias"]), pad=st.tuples(*[st.integers(0, 3)] * 3),
    seed=st.integers(0, 2**20),
)  # fmt: skip
def test_it_computes_the_problem(
    m: int, n: int, k: int, layout: str, types: tuple[str, str], epilogue: str, pad: tuple[int, ...], seed: int
) -> None:
    plain = Gemm(m, n, k, types[0], types[1], layout, epilogue)
    ends = (plain.tensors()[0], plain.tensors()[1], plain.tensors()[-1])
    problem = Gemm(m, n, k, *types, layout, epilogue, *(t.ld + extra for t, extra in zip(ends, pad, strict=True)))
    lib = HostLt()
    got, reference, scale, gemm = run(problem, lib, seed)
    bound = problem.error_bound()
    assert (np.abs(got - reference) <= bound.accumulation * scale + bound.rounding * np.abs(reference) + 2.0**-24).all()
    assert lib.computes == [COMPUTE_32F_FAST_TF32 if types[0] == "tf32" else COMPUTE_32F]
    gemm.close()
    assert not lib.alive
    gemm.close()
    del gemm  # which gives back nothing twice


def test_the_first_16_that_can_be_used_are_asked_for_with_the_workspace_and_fp32_reductions() -> None:
    lib = HostLt(usable=12)
    gemm = LtGemm(Gemm(8, 8, 8), None, lib, workspace=(512, 2**25))
    addresses = {"a": 0x1000, "b": 0x1010, "d": 0x1002}
    found = gemm.heuristics(addresses)
    assert [one.algorithm[0] for one in found] == list(range(12))
    assert lib.preference == {1: 2**25, 3: 3, 5: 16, 6: 256, 7: 2, 8: 2}
    lib.usable = 99
    assert len(gemm.heuristics(addresses)) == REQUESTED
    small = LtGemm(Gemm(8, 8, 8), None, lib, workspace=(512, 3000))
    assert len(small.heuristics(addresses)) == 3  # the others want more workspace


def test_the_structure_is_as_large_as_the_librarys() -> None:
    assert ctypes.sizeof(Heuristic) == 96


@pytest.mark.parametrize(
    ("problem", "words"),
    [(Gemm(8, 8, 8, "fp16", b_dtype="bf16"), "operands of one type"), (Gemm(8, 8, 8, "fp32", "bf16"), "write bf16")],
)
def test_types_it_does_not_combine_are_refused(problem: Gemm, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        LtGemm(problem, None, HostLt(), workspace=(512, 1))
    assert unsupported(Gemm(8, 8, 8)) is None


def test_refusals_are_launch_errors() -> None:
    with pytest.raises(LaunchError, match=r"know no algorithm for gemm 8x8x8"):
        run(Gemm(8, 8, 8), HostLt(algorithms=0))
    lib = HostLt()
    lib.cublasLtMatmul = lambda *_: 15  # type: ignore[method-assign]
    with pytest.raises(LaunchError, match=r"cublasLtMatmul of gemm 8x8x8.*not supported"):
        run(Gemm(8, 8, 8), lib)
