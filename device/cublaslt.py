"""cuBLASLt through ctypes on the installed libcublasLt: the algorithms that its heuristics name for a product.

Frameworks take what the heuristics put first, as cuBLAS does; timing the first 16 and keeping the quickest is what a
careful user does, and the strongest form of the vendor's library. Epilogues are fused: C and beta, and a bias.
Constants and structures: cublasLt.h (``cublasLtMatmulHeuristicResult_t`` and the attribute enumerations).
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from gemmtune.device.cublas import (
    COMPUTE_32F,
    COMPUTE_32F_FAST_TF32,
    DATA_TYPES,
    WORKSPACE,
    RefusedError,
    check,
    load,
)
from gemmtune.device.scratch import allocate
from gemmtune.device.toolchain import require_cupy
from gemmtune.space.errors import ToolchainError, UnsupportedError
from gemmtune.space.gemm import Gemm

REQUESTED = 16
"""How many algorithms the heuristics are asked for."""

_OP_N, _OP_T = 0, 1
_R_32F = 0  # CUDA_R_32F, the type of alpha and beta
_DESC_TRANSA, _DESC_TRANSB, _DESC_EPILOGUE = 3, 4, 7  # cublasLtMatmulDescAttributes_t
_DESC_BIAS_POINTER, _DESC_BIAS_DATA_TYPE = 8, 26
_PREF_MAX_WORKSPACE_BYTES, _PREF_REDUCTION_SCHEME_MASK = 1, 3  # cublasLtMatmulPreferenceAttributes_t
_PREF_MIN_ALIGNMENTS = {"a": 5, "b": 6, "c": 7, "d": 8}  # of the library's A, B, C and D
_EPILOGUE_BIAS = 4
_REDUCE_IN_PLACE, _REDUCE_IN_COMPUTE_TYPE = 1, 2
"""Of split K. In place, parts are added up in the output's type (cuBLAS documentation, cublasLtReductionScheme_t): such
algorithms count among the 16 where their result is right all the same."""
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


class Lt:
    """A handle of the library on the current device: good for all its streams, and for several threads at once.

    Args:
        lib: libcublasLt (or what stands in for it in tests).

    Raises:
        LaunchError: the library refuses.
    """

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        self.handle = ctypes.c_void_p()
        check(lib.cublasLtCreate(ctypes.byref(self.handle)), "cublasLtCreate")


_handles: dict[int, Lt] = {}
_lock = threading.Lock()


def lt_of_device() -> Lt:
    """The handle of the current device, made on first use and then kept.

    Raises:
        ToolchainError: the library is not installed.
    """
    device = int(require_cupy().cuda.runtime.getDevice())
    found = _handles.get(device)
    if found is None:
        with _lock:
            found = _handles.get(device) or _handles.setdefault(device, Lt(library()))
    return found


def unsupported(problem: Gemm) -> str | None:
    """Why cuBLASLt does not take a problem as it is; None where it does."""
    operand, other, out = problem.a.numpy, problem.b.numpy, problem.out.numpy
    if operand != other:
        return f"cuBLASLt multiplies operands of one type, but these are {problem.dtype} and {problem.b_dtype}."
    if out not in (operand, "float32"):
        return f"cuBLASLt does not write {problem.out_dtype} from {problem.dtype} operands."
    return None


class LtGemm:
    """One row-major product for cuBLASLt, described once; :meth:`heuristics`, then :meth:`launch`, from any thread.

    As in :class:`gemmtune.device.cublas.GemmCall` the column-major library is asked for D^T = op(B)^T op(A)^T: its A is
    our B, its rows are our columns. A bias, of D's type, is added to each of its columns, which are our rows.

    Args:
        problem: sizes, types, layout, pitches and epilogue.
        scalars: values of alpha and beta; 1 and 0 where not given.
        lt: handle of the library; the current device's where None.
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
        lt: Lt | None = None,
        workspace: tuple[int, int] | None = None,
    ) -> None:
        reason = unsupported(problem)
        if reason is not None:
            raise UnsupportedError(reason)
        self._problem = problem
        self._lt = lt_of_device() if lt is None else lt
        self._objects: list[tuple[str, ctypes.c_void_p]] = []
        self._memory = None
        if workspace is None:
            self._memory = allocate(WORKSPACE)
            workspace = int(self._memory.ptr), WORKSPACE
        self._workspace = workspace
        given = scalars or {}
        self._beta_used = problem.epi.reads_c and given.get("beta", 0.0) != 0.0
        self._alpha = ctypes.c_float(given.get("alpha", 1.0))
        self._beta = ctypes.c_float(given.get("beta", 0.0) if self._beta_used else 0.0)
        self._bias = 0
        self._bias_lock = threading.Lock()  # no thread may come between setting the address and the call that reads it
        self._describe()

    def heuristics(
        self, pointers: Mapping[str, int], count: int = REQUESTED, *, sums_in_fp32: bool = False
    ) -> list[Heuristic]:
        """The algorithms that the library's heuristics put first, best guess first.

        Args:
            pointers: addresses by tensor name; every later launch must be at addresses at least as aligned.
            count: how many at most.
            sums_in_fp32: leave out those that add the parts of a split K in a type of 16 bits.

        Raises:
            RefusedError: the library does not compute such a thing, or knows no algorithm.
            LaunchError: it fails otherwise.
        """
        addresses = {"a": pointers["b"], "b": pointers["a"], "c": self._c(pointers), "d": pointers["d"]}
        if self._problem.epi.reads_bias:  # there is no attribute of its own for it
            addresses["d"] |= pointers["bias"]
        preference = self._made("MatmulPreference")
        self._prefer(preference, _PREF_MAX_WORKSPACE_BYTES, ctypes.c_uint64(self._workspace[1]))
        in_place = not sums_in_fp32 or self._problem.out.numpy == "float32"
        schemes = ctypes.c_uint32(_REDUCE_IN_COMPUTE_TYPE | (_REDUCE_IN_PLACE if in_place else 0))
        self._prefer(preference, _PREF_REDUCTION_SCHEME_MASK, schemes)
        for name, attribute in _PREF_MIN_ALIGNMENTS.items():
            address = addresses[name]
            self._prefer(preference, attribute, ctypes.c_uint32(min(_LARGEST_ALIGNMENT, address & -address)))
        found = (Heuristic * count)()
        returned = ctypes.c_int()
        with self._bias_lock:
            self._point_at_bias(pointers)
            status = self._lt.lib.cublasLtMatmulAlgoGetHeuristic(
                self._lt.handle, self._desc, *self._layouts, preference, ctypes.c_int(count), found,
                ctypes.byref(returned),
            )  # fmt: skip
        check(status, f"cublasLtMatmulAlgoGetHeuristic of {self._problem.key}")
        usable = [one for one in found[: returned.value] if one.state == 0 and one.workspace <= self._workspace[1]]
        if not usable:
            raise RefusedError(f"cuBLASLt's heuristics know no algorithm for {self._problem.key}.")
        return usable

    def launch(self, heuristic: Heuristic, pointers: Mapping[str, int], stream: int) -> None:
        """Enqueue the product by one algorithm.

        Raises:
            RefusedError: the library does not compute such a thing.
            LaunchError: it fails otherwise.
        """
        a_layout, b_layout, c_layout, d_layout = self._layouts
        with self._bias_lock:
            self._point_at_bias(pointers)
            status = self._lt.lib.cublasLtMatmul(
                self._lt.handle, self._desc,
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
            getattr(self._lt.lib, f"cublasLt{kind}Destroy")(made)

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
            self._set(_DESC_BIAS_DATA_TYPE, ctypes.c_int32(DATA_TYPES[tensors["bias"].dtype.numpy]))
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
        if self._problem.epi.reads_bias and pointers["bias"] != self._bias:
            self._set(_DESC_BIAS_POINTER, ctypes.c_void_p(pointers["bias"]))
            self._bias = pointers["bias"]

    def _made(self, kind: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        create = getattr(self._lt.lib, f"cublasLt{kind}Create")
        check(create(ctypes.byref(made), *arguments), f"cublasLt{kind}Create")
        self._objects.append((kind, made))
        return made

    def _set(self, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        status = self._lt.lib.cublasLtMatmulDescSetAttribute(
            self._desc, ctypes.c_int(attribute), ctypes.byref(value), size
        )
        check(status, f"cublasLtMatmulDescSetAttribute {attribute}")

    def _prefer(self, preference: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        status = self._lt.lib.cublasLtMatmulPreferenceSetAttribute(
            preference, ctypes.c_int(attribute), ctypes.byref(value), size
        )
        check(status, f"cublasLtMatmulPreferenceSetAttribute {attribute}")
