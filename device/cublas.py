"""The installed libcublas through ctypes: a handle of one stream with that stream's workspace, and GemmEx.

CuPy's own binding sets the handle's stream anew in every call, and ``cublasSetStream`` "unconditionally resets the
cuBLAS library workspace back to the default workspace pool" (cuBLAS documentation); nor does it offer
``cublasSetWorkspace``. Constants: cublas_api.h and library_types.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from functools import lru_cache
from typing import Any

from gemmtune.device.scratch import allocate
from gemmtune.device.toolchain import require_cupy
from gemmtune.space.errors import LaunchError, ToolchainError

WORKSPACE = 32 * 2**20
"""Bytes of workspace: what NVIDIA recommends for Hopper, and more than it does for anything older."""

COMPUTE_32F, COMPUTE_32F_FAST_TF32, COMPUTE_64F = 68, 77, 70
DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
_GEMM_DEFAULT = -1
_OP_N, _OP_T = 0, 1
_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16  # on CUBLAS_DEFAULT_MATH (0), which uses no TF32 of its own accord
_REFUSED = (7, 15)  # CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_NOT_SUPPORTED
_STATUS = {
    1: "not initialised", 3: "allocation failed", 7: "invalid value", 8: "architecture mismatch", 11: "mapping error",
    13: "execution failed", 14: "internal error", 15: "not supported", 16: "licence error",
}  # fmt: skip


class RefusedError(LaunchError):
    """The library does not compute what was described (a type, a size, an alignment); nothing was enqueued."""


@lru_cache(maxsize=1)
def library() -> Any:
    """libcublas, loaded once.

    Raises:
        ToolchainError: it is not found.
    """
    lib = load("cublas")
    if lib is None:
        raise ToolchainError(
            "libcublas was not found, so there is no baseline: pip install nvidia-cublas (CUDA 13) or "
            "nvidia-cublas-cu12."
        )
    for function in (lib.cublasCreate_v2, lib.cublasSetStream_v2, lib.cublasSetWorkspace_v2, lib.cublasGemmEx):
        function.restype = ctypes.c_int
    return lib


def load(name: str) -> Any:
    """A library of the installed cuBLAS, ``"cublas"`` or ``"cublasLt"``; None where there is none."""
    try:
        from cuda import pathfinder
    except ImportError:
        files = [f"lib{name}.so.13", f"lib{name}.so.12"]
    else:
        try:
            files = [pathfinder.load_nvidia_dynamic_lib(name).abs_path or f"lib{name}.so"]
        except (RuntimeError, OSError):  # DynamicLibNotFoundError is a RuntimeError
            files = []
    for file in files:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(file)
    return None


def version(lib: Any) -> str:
    """The library's version, ``"13.1.0"``."""
    parts = []
    for which in range(3):  # MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL
        value = ctypes.c_int()
        lib.cublasGetProperty(which, ctypes.byref(value))
        parts.append(str(value.value))
    return ".".join(parts)


def check(status: int, what: str) -> None:
    """Raise where a cuBLAS call failed.

    Raises:
        RefusedError: it said that it does not do such a thing.
        LaunchError: any other failure.
    """
    if status != 0:
        kind = RefusedError if status in _REFUSED else LaunchError
        raise kind(f"cuBLAS failed in {what}: {_STATUS.get(status, f'status {status}')}.")


_workspaces: dict[tuple[int, int], Any] = {}
_workspaces_lock = threading.Lock()


def workspace_of(stream: int) -> tuple[int, int]:
    """Address and bytes of the workspace of a stream of the current device, allocated on first use and then kept.

    cuBLAS and cuBLASLt share it: what one stream runs, it runs in turn. Captured graphs hold its address, so it stays.
    """
    key = (int(require_cupy().cuda.runtime.getDevice()), stream)
    with _workspaces_lock:
        memory = _workspaces.get(key)
        if memory is None:
            memory = _workspaces[key] = allocate(WORKSPACE)
    return int(memory.ptr), WORKSPACE


class Handle:
    """A cuBLAS handle for one stream of the current device, with that stream's workspace.

    Args:
        lib: libcublas (or what stands in for it in tests).
        stream: address of the stream.
        workspace: address and size of the workspace; that of the stream where None.
    """

    def __init__(self, lib: Any, stream: int, workspace: tuple[int, int] | None = None) -> None:
        self._lib = lib
        self._handle = ctypes.c_void_p()
        if workspace is None:
            workspace = workspace_of(stream)
        check(lib.cublasCreate_v2(ctypes.byref(self._handle)), "cublasCreate")
        check(lib.cublasSetStream_v2(self._handle, ctypes.c_void_p(stream)), "cublasSetStream")
        address, size = workspace  # after the stream, whose setting resets it
        check(
            lib.cublasSetWorkspace_v2(self._handle, ctypes.c_void_p(address), ctypes.c_size_t(size)),
            "cublasSetWorkspace",
        )
        check(lib.cublasSetMathMode(self._handle, _MATH_DISALLOW_REDUCED_PRECISION_REDUCTION), "cublasSetMathMode")

    def gemm(self, call: GemmCall, a: int, b: int, d: int) -> None:
        """Enqueue a prepared product on the handle's stream.

        Raises:
            LaunchError: cuBLAS refuses.
        """
        status = self._lib.cublasGemmEx(
            self._handle, *call.head,
            ctypes.c_void_p(b), *call.b, ctypes.c_void_p(a), *call.a, call.beta, ctypes.c_void_p(d), *call.tail,
        )  # fmt: skip
        if status != 0:
            check(status, call.what)


class GemmCall:
    """The arguments of one row-major product D[m,n] = alpha * op(A) op(B) + beta * D, worked out once.

    A row-major matrix is the transpose of the column-major one in the same memory, so cuBLAS is asked for
    D^T = op(B)^T op(A)^T: operands change places, ``n`` and ``m`` too, and an operand is transposed exactly where its
    layout letter is ``t`` for B ([N,K]) or for A ([K,M]).

    Args:
        layout: the two letters of :class:`gemmtune.space.gemm.Gemm`.
        sizes: m, n, k.
        pitches: row pitches of A, B and D in elements.
        types: NumPy names of the element types of A, B and D.
        compute: cuBLAS compute type.
        alpha: factor of the product.
        beta: factor of what D holds; fp64 for COMPUTE_64F, else fp32.

    Raises:
        LaunchError: a size or pitch does not fit the 32-bit interface of cuBLAS.
    """

    __slots__ = ("_scalars", "a", "b", "beta", "head", "tail", "what")

    def __init__(
        self,
        layout: str,
        sizes: tuple[int, int, int],
        pitches: tuple[int, int, int],
        types: tuple[str, str, str],
        compute: int,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        if max(*sizes, *pitches) >= 2**31:
            raise LaunchError(f"cuBLAS takes sizes and pitches below 2**31, but got {sizes} and {pitches}.")
        m, n, k = sizes
        ctype = ctypes.c_double if compute == COMPUTE_64F else ctypes.c_float
        self._scalars = (ctype(alpha), ctype(beta))
        pointers = [ctypes.c_void_p(ctypes.addressof(s)) for s in self._scalars]
        type_a, type_b, type_d = (DATA_TYPES[t] for t in types)
        self.head = (_OP_T if layout[1] == "t" else _OP_N, _OP_T if layout[0] == "t" else _OP_N, n, m, k, pointers[0])
        self.b = (type_b, pitches[1])
        self.a = (type_a, pitches[0])
        self.beta = pointers[1]
        self.tail = (type_d, pitches[2], compute, _GEMM_DEFAULT)
        self.what = f"cublasGemmEx {m}x{n}x{k} {layout} {types}"


_handles: dict[tuple[int, int], Handle] = {}
_lock = threading.Lock()


def handle_of(stream: int) -> Handle:
    """The handle of a stream of the current device, made on first use (not while that stream is capturing)."""
    key = (int(require_cupy().cuda.runtime.getDevice()), stream)
    found = _handles.get(key)
    if found is None:
        with _lock:
            found = _handles.get(key) or _handles.setdefault(key, Handle(library(), stream))
    return found
