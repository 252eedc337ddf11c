"""cuBLASLt through ctypes on the installed libcublasLt: the first 16 algorithms that its heuristics name for a product.

cuBLAS takes what the heuristics put first; timing the first 16 and keeping the quickest is what a careful user does,
and the strongest form of the vendor's library. Epilogues are fused: C and beta, and a bias. Constants and structures:
cublasLt.h (``cublasLtMatmulHeuristicResult_t`` and the attribute enumerations).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from gemmtune.device.cublas import COMPUTE_32F, COMPUTE_32F_FAST_TF32, DATA_TYPES, WORKSPACE, check, load
from gemmtune.device.scratch import allocate
from gemmtune.space.errors import LaunchError, ToolchainError, UnsupportedError
from gemmtune.space.gemm import Gemm

REQUESTED = 16
"""How many algorithms the heuristics are asked for."""

_OP_N, _OP_T = 0, 1
_R_32F = 0  # CUDA_R_32F, the type of alpha and beta
_DESC_TRANSA, _DESC_TRANSB, _DESC_EPILOGUE, _DESC_BIAS_POINTER = 3, 4, 7, 8  # cublasLtMatmulDescAttributes_t
_PREF_MAX_WORKSPACE_BYTES, _PREF_REDUCTION_SCHEME_MASK = 1, 3  # cublasLtMatmulPreferenceAttributes_t
_PREF_MIN_ALIGNMENTS = {"a": 5, "b": 6, "c": 7, "d": 8}  # of the library's A, B, C and D
_EPILOGUE_BIAS = 4
_REDUCE_IN_PLACE, _REDUCE_IN_COMPUTE_TYPE = 1, 2
"""Of split K. In place, parts are added up in the output's type (cuBLAS documentation, cublasLtReductionScheme_t): such
algorithms count where their result is right all the same."""
_LARGEST_ALIGNMENT = 256


class Heuristic(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``: an opaque algorithm, its workspace in bytes, and whether it can be used."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@lru_cache(maxsize=1)
def library() -> Any:
    """libcublasLt, loaded once.

    Raises:
        ToolchainError: it is not found.
    """
    lib = load("cublasLt")
    if lib is None:
        raise ToolchainError("libcublasLt was not found: pip install nvidia-cublas (CUDA 13) or nvidia-cublas-cu12.")
    return lib


def unsupported(problem: Gemm) -> str | None:
    """Why cuBLASLt does not take a problem as it is; None where it does."""
    operand, other, out = problem.a.numpy, problem.b.numpy, problem.out.numpy
    if operand != other:
        return f"cuBLASLt multiplies operands of one type, but these are {problem.dtype} and {problem.b_dtype}."
    if out not in (operand, "float32"):
        return f"cuBLASLt does not write {problem.out_dtype} from {problem.dtype} operands."
    return None


class LtGemm:
    """One row-major product for cuBLASLt, described once; :meth:`heuristics`, then :meth:`launch`.

    As in :class:`gemmtune.device.cublas.GemmCall` the column-major library is asked for D^T = op(B)^T op(A)^T: its A is
    our B, its rows are our columns. A bias is added to each of its columns, which are our rows.

    Args:
        problem: sizes, types, layout, pitches and epilogue.
        scalars: values of alpha and beta; 1 and 0 where not given.
        lib: libcublasLt (or what stands in for it in tests).
        workspace: address and size of the workspace; allocated where None.

    Raises:
        UnsupportedError: cuBLASLt does not combine the problem's types.
        ToolchainError: the library is not installed.
        LaunchError: it refuses.
    """

    def __init__(
        self,
        problem: Gemm,
        scalars: Mapping[str, float] | None = None,
        lib: Any = None,
        workspace: tuple[int, int] | None = None,
    ) -> None:
        reason = unsupported(problem)
        if reason is not None:
            raise UnsupportedError(reason)
        self._problem = problem
        self._lib = library() if lib is None else lib
        self._objects: list[tuple[str, ctypes.c_void_p]] = []
        self._handle = self._made("")
        self._memory = None
        if workspace is None:
            self._memory = allocate(WORKSPACE)
            workspace = int(self._memory.ptr), WORKSPACE
        self._workspace = workspace
        given = scalars or {}
        self._beta_used = problem.epi.reads_c and given.get("beta", 0.0) != 0.0
        self._alpha = ctypes.c_float(given.get("alpha", 1.0))
        self._beta = ctypes.c_float(given.get("beta", 0.0) if self._beta_used else 0.0)
        self._describe()

    def heuristics(self, pointers: Mapping[str, int], count: int = REQUESTED) -> list[Heuristic]:
        """The algorithms that the library's heuristics put first, best guess first.

        Args:
            pointers: addresses by tensor name; every later launch must be at addresses at least as aligned.
            count: how many at most.

        Raises:
            LaunchError: the library refuses, or knows no algorithm.
        """
        addresses = {"a": pointers["b"], "b": pointers["a"], "c": self._c(pointers), "d": pointers["d"]}
        preference = self._made("MatmulPreference")
        self._prefer(preference, _PREF_MAX_WORKSPACE_BYTES, ctypes.c_uint64(self._workspace[1]))
        schemes = ctypes.c_uint32(_REDUCE_IN_PLACE | _REDUCE_IN_COMPUTE_TYPE)
        self._prefer(preference, _PREF_REDUCTION_SCHEME_MASK, schemes)
        for name, attribute in _PREF_MIN_ALIGNMENTS.items():
            address = addresses[name]
            self._prefer(preference, attribute, ctypes.c_uint32(min(_LARGEST_ALIGNMENT, address & -address)))
        self._point_at_bias(pointers)
        found = (Heuristic * count)()
        returned = ctypes.c_int()
        status = self._lib.cublasLtMatmulAlgoGetHeuristic(
            self._handle, self._desc, *self._layouts, preference, ctypes.c_int(count), found, ctypes.byref(returned)
        )
        check(status, f"cublasLtMatmulAlgoGetHeuristic of {self._problem.key}")
        usable = [one for one in found[: returned.value] if one.state == 0 and one.workspace <= self._workspace[1]]
        if not usable:
            raise LaunchError(f"cuBLASLt's heuristics know no algorithm for {self._problem.key}.")
        return usable

    def launch(self, heuristic: Heuristic, pointers: Mapping[str, int], stream: int) -> None:
        """Enqueue the product by one algorithm.

        Raises:
            LaunchError: the library refuses.
        """
        self._point_at_bias(pointers)
        a_layout, b_layout, c_layout, d_layout = self._layouts
        status = self._lib.cublasLtMatmul(
            self._handle, self._desc,
            ctypes.byref(self._alpha), ctypes.c_void_p(pointers["b"]), a_layout, ctypes.c_void_p(pointers["a"]),
            b_layout, ctypes.byref(self._beta), ctypes.c_void_p(self._c(pointers)), c_layout,
            ctypes.c_void_p(pointers["d"]), d_layout, ctypes.byref(heuristic), ctypes.c_void_p(self._workspace[0]),
            ctypes.c_size_t(self._workspace[1]), ctypes.c_void_p(stream),
        )  # fmt: skip
        if status != 0:
            check(status, f"cublasLtMatmul of {self._problem.key}")

    def close(self) -> None:
        """Give the library's objects back; safe to call twice."""
        while self._objects:
            kind, made = self._objects.pop()
            getattr(self._lib, f"cublasLt{kind}Destroy")(made)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter, or the CUDA context, may be going down
            self.close()

    # -------------------------------------------------------------------------------------------------- internals

    def _describe(self) -> None:
        p = self._problem
        tensors = {t.name: t for t in p.tensors()}
        compute = COMPUTE_32F_FAST_TF32 if "tf32" in (p.dtype, p.b_dtype) else COMPUTE_32F
        self._desc = self._made("MatmulDesc", ctypes.c_int(compute), ctypes.c_int(_R_32F))
        trans_a, trans_b = (_OP_T if letter == "t" else _OP_N for letter in (p.layout[1], p.layout[0]))
        self._set(_DESC_TRANSA, ctypes.c_int32(trans_a))
        self._set(_DESC_TRANSB, ctypes.c_int32(trans_b))
        if p.epi.reads_bias:
            self._set(_DESC_EPILOGUE, ctypes.c_uint32(_EPILOGUE_BIAS))
        shapes = [(p.n, p.k) if trans_a == _OP_N else (p.k, p.n), (p.k, p.m) if trans_b == _OP_N else (p.m, p.k)]
        matrices = [(tensors["b"], *shapes[0]), (tensors["a"], *shapes[1]), *[(tensors["d"], p.n, p.m)] * 2]
        self._layouts: Sequence[ctypes.c_void_p] = [
            self._made(
                "MatrixLayout",
                ctypes.c_int(DATA_TYPES[tensor.dtype.numpy]),
                ctypes.c_uint64(rows),
                ctypes.c_uint64(columns),
                ctypes.c_int64(tensor.ld),
            )
            for tensor, rows, columns in matrices
        ]

    def _c(self, pointers: Mapping[str, int]) -> int:
        return pointers["c"] if self._beta_used else pointers["d"]

    def _point_at_bias(self, pointers: Mapping[str, int]) -> None:
        if self._problem.epi.reads_bias:
            self._set(_DESC_BIAS_POINTER, ctypes.c_void_p(pointers["bias"]))

    def _made(self, kind: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        check(getattr(self._lib, f"cublasLt{kind}Create")(ctypes.byref(made), *arguments), f"cublasLt{kind}Create")
        self._objects.append((kind, made))
        return made

    def _set(self, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        status = self._lib.cublasLtMatmulDescSetAttribute(
            self._desc, ctypes.c_int(attribute), ctypes.byref(value), size
        )
        check(status, f"cublasLtMatmulDescSetAttribute {attribute}")

    def _prefer(self, preference: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        status = self._lib.cublasLtMatmulPreferenceSetAttribute(
            preference, ctypes.c_int(attribute), ctypes.byref(value), size
        )
        check(status, f"cublasLtMatmulPreferenceSetAttribute {attribute}")
