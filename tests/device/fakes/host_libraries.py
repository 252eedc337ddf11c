"""cuBLAS, cuBLASLt, CuPy and the elementwise kernel on host memory, as their documentation defines them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from gemmtune.space.gemm import Gemm

TYPES: dict[int, Any] = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}
NAMES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def value(argument: Any) -> Any:
    return argument.value if hasattr(argument, "value") else argument


def behind(reference: Any) -> Any:
    return reference._obj


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


class HostLt:
    """cuBLASLt as its documentation defines it, on host memory; its objects are numbers.

    Args:
        algorithms: how many the heuristics know.
        usable: how many of them can be used.
        statuses: what a call answers in place of its work, by its name.
    """

    def __init__(self, algorithms: int = 20, usable: int = 99, statuses: Mapping[str, int] | None = None) -> None:
        self.algorithms, self.usable, self.statuses = algorithms, usable, dict(statuses or {})
        self.layouts: dict[int, tuple[int, int, int, int]] = {}
        self.descs: dict[int, dict[int, int]] = {}
        self.preferences: dict[int, dict[int, int]] = {}
        self.alive: set[int] = set()
        self.computes: list[int] = []
        self.chosen: list[int] = []
        self.calls: list[str] = []
        self.created: list[str] = []
        self.matmuls: list[tuple[int, int, int]] = []
        """Stream, address and size of the workspace of each product."""
        self._next = 100

    def _refused(self, call: str) -> int:
        self.calls.append(call)
        return self.statuses.get(call, 0)

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
        self.created.append("handle")
        self._new(out)
        return 0

    def cublasLtMatmulDescCreate(self, out: Any, compute: Any, scale: Any) -> int:
        assert scale.value == 0
        self.computes.append(compute.value)
        self.descs[self._new(out)] = {}
        return 0

    def cublasLtMatrixLayoutCreate(self, out: Any, kind: Any, rows: Any, columns: Any, ld: Any) -> int:
        if status := self.statuses.get("layout", 0):
            return status
        assert ld.value >= rows.value
        self.layouts[self._new(out)] = (kind.value, rows.value, columns.value, ld.value)
        return 0

    def cublasLtMatmulPreferenceCreate(self, out: Any) -> int:
        self.preferences[self._new(out)] = {}
        return 0

    def cublasLtMatmulDescSetAttribute(self, desc: Any, which: Any, value: Any, size: Any) -> int:
        assert size.value == {3: 4, 4: 4, 7: 4, 8: 8, 26: 4}[which.value]
        self.descs[desc.value][which.value] = behind(value).value
        return 0

    def cublasLtMatmulPreferenceSetAttribute(self, made: Any, which: Any, value: Any, size: Any) -> int:
        assert size.value == {1: 8}.get(which.value, 4)
        self.preferences[made.value][which.value] = behind(value).value
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, *arguments: Any) -> int:
        if status := self._refused("heuristics"):
            return status
        _, desc, _, _, _, _, preference, count, found, returned = arguments
        self.preference = self.preferences[preference.value]
        self.seen = dict(self.descs[desc.value])
        behind(returned).value = min(count.value, self.algorithms)
        for index in range(min(count.value, self.algorithms)):
            found[index].algorithm[0] = index
            found[index].state = 0 if index < self.usable else 15
            found[index].workspace = 1024 * index
        return 0

    def cublasLtMatmul(self, *arguments: Any) -> int:
        if status := self._refused("matmul"):
            return status
        _, desc, alpha, a, la, b, lb, beta, c, lc, d, ld, algorithm, workspace, size, stream = arguments
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
            bias = column_major(attributes[8], rows, 1, rows, TYPES[attributes[26]])
            result += bias.astype(np.float64)
        out = column_major(d.value, rows, columns, pitch, TYPES[kind])
        out[...] = result.astype(out.dtype)
        self.chosen.append(behind(algorithm).algorithm[0])
        self.matmuls.append((stream.value or 0, workspace.value, size.value))
        return 0


class Placed:
    """The operands of a problem in host memory, each padded to its pitch; D and the paddings hold NaN.

    Args:
        problem: what they are operands of.
        seed: of their values.
        offsets: bytes by which a tensor lies off a 256-byte boundary.
    """

    def __init__(self, problem: Gemm, seed: int = 0, offsets: Mapping[str, int] | None = None) -> None:
        self.problem = problem
        self.arrays = problem.inputs(seed)
        self.views: dict[str, Any] = {}
        self.pointers: dict[str, int] = {}
        self._rows: dict[str, Any] = {}
        for t in problem.tensors():
            size = t.shape[0] * t.ld * t.dtype.bytes
            raw = np.zeros(size + 768, np.uint8)
            start = -raw.ctypes.data % 256 + (offsets or {}).get(t.name, 0)
            flat = raw[start : start + size].view(t.dtype.np)
            flat[...] = np.full(flat.shape, np.nan, np.float32).astype(t.dtype.np)
            rows = flat.reshape(t.shape[0], t.ld)
            view = rows[:, : t.shape[1]]
            if not t.output:
                view[...] = self.arrays[t.name]
            self._rows[t.name], self.views[t.name], self.pointers[t.name] = rows, view, flat.ctypes.data

    @property
    def scalars(self) -> dict[str, float]:
        return {name: float(self.arrays[name]) for name in self.problem.epi.scalars}

    def paddings(self, name: str) -> Any:
        """What lies between the rows of a tensor."""
        tensor = next(t for t in self.problem.tensors() if t.name == name)
        return self._rows[name][:, tensor.shape[1] :]

    @property
    def d(self) -> Any:
        return self.views["d"].astype(np.float64)

    def reference(self) -> tuple[Any, Any]:
        """float64 D, and the scale of its errors."""
        p = self.problem
        return p.reference(self.arrays, np.arange(p.m), np.arange(p.n))
