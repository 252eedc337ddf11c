"""The float64 reference on the GPU, and its check against NumPy.

The reference is computed by cuBLAS in float64 from the very values in the buffers under test, in column chunks, so
that memory stays bounded; a few of its entries are recomputed with the problem's own NumPy reference each time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmtune.device import verify
from gemmtune.device.cublas import COMPUTE_64F, GemmCall, handle_of
from gemmtune.device.cuda.helpers import Axis, apply_epilogue, gather
from gemmtune.device.cuda.operands import Operands
from gemmtune.device.toolchain import require_cupy
from gemmtune.space.errors import LaunchError, UnsupportedError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Array, Tensor

_SECONDS = 0.012
"""Time a reference may take; what does not fit is sampled."""
_ELEMENTS = 2**25
"""Most elements of the reference, and of a gathered operand: 256 MiB each as float64."""
_FEWEST = 32
"""Rows or columns that are always compared."""
SPECIAL_ROWS = 8
"""Rows compared where NaN and infinities were planted."""
_FULL_RATE = {(6, 0), (7, 0), (8, 0), (9, 0)}  # float64 at half the fp32 rate, and tensor cores for it from 8.0 on


def affordable_flops(gpu: Gpu) -> float:
    """Float64 operations within the time limit: half of the peak that the chip's class has."""
    fma = 2.0 * gpu.sms * gpu.clock
    rate = 64 * fma * (2 if gpu.capability[0] >= 8 else 1) if gpu.capability in _FULL_RATE else 2 * fma
    return 0.5 * rate * _SECONDS


class GemmReference:
    """Reference and scale of a GEMM at chosen rows and columns.

    Args:
        operands: the buffers under test.
        gpu: says how much float64 arithmetic is affordable.

    ``rows``, ``columns`` (int64, sorted) and ``reference``, ``scale`` (float64, [rows, columns]) are CuPy arrays;
    ``host_rows`` and ``host_columns`` the same indices in NumPy.
    """

    def __init__(self, operands: Operands, gpu: Gpu) -> None:
        if not isinstance(operands.problem, Gemm):
            raise UnsupportedError(f"Problems of kind {operands.problem.kind!r} have no reference on the GPU.")
        self._operands = operands
        self._problem: Gemm = operands.problem
        self._flops = affordable_flops(gpu)
        self._done: tuple[int | None, int] | None = None

    @property
    def coverage(self) -> float:
        """Fraction of the output that is compared."""
        p = self._problem
        return len(self.host_rows) * len(self.host_columns) / (p.m * p.n)

    def rows_below(self, count: int) -> int:
        """How many of the rows are below ``count``."""
        return int(np.searchsorted(self.host_rows, count))

    def compute(self, first_rows: int) -> None:
        """Reference of the operands' present inputs; of a sample, the first ``first_rows`` rows are part.

        Raises:
            LaunchError: cuBLAS fails, or disagrees with NumPy.
        """
        if self._done == (self._operands.seed, first_rows):
            return
        self._fill(*self._choose(first_rows))
        self._check()
        self._done = (self._operands.seed, first_rows)

    def compute_special(self, rows: int) -> None:
        """Plant NaN and infinities in A and B, then take the reference of the first ``rows`` rows.

        They stand at the first and the last k: a kernel that masks one operand's K tail, but not the other's, reads
        those of the next row or column and multiplies them by its zeros. The operands are to be refreshed afterwards.
        """
        p, pointers = self._problem, self._operands.pointers
        a, b = self._operands.tensors[0], self._operands.tensors[1]
        for row, k, value in ((1, 0, np.nan), (4, 0, np.inf), (6, p.k - 1, -np.inf)):
            place = row * a.ld + k if p.layout[0] == "n" else k * a.ld + row
            if row < rows:
                _write(pointers["a"], a, place, value)
        for column, k, value in ((2, 0, np.nan), (5, 0, -np.inf), (7, p.k - 1, np.inf)):
            place = k * b.ld + column if p.layout[1] == "n" else column * b.ld + k
            if column < p.n:
                _write(pointers["b"], b, place, value)
        columns = self._choose(0)[1]
        self._fill(np.arange(min(rows, SPECIAL_ROWS), dtype=np.int64), columns)
        self._done = None

    # -------------------------------------------------------------------------------------------------- internals

    def _choose(self, first_rows: int) -> tuple[Any, Any]:
        p = self._problem
        rng = np.random.default_rng(abs(self._operands.seed or 0))
        budget = self._flops / (4 * p.k)  # two products of 2 k operations an element
        columns = min(p.n, max(_FEWEST, int(min(budget, _ELEMENTS) // min(p.m, _FEWEST))))
        rows = min(p.m, max(_FEWEST, int(min(budget, _ELEMENTS) // columns)))
        rows = min(rows, max(_FEWEST, _ELEMENTS // p.k))  # the gathered A
        return (
            verify.sample_axis(p.m, rows, rng, always=(0, p.m - 1, *range(1, min(first_rows, p.m)))),
            verify.sample_axis(p.n, columns, rng),
        )

    def _fill(self, rows: Array, columns: Array) -> None:
        """Reference and scale at these rows and columns."""
        cupy = require_cupy()
        self.host_rows, self.host_columns = rows, columns
        self.rows, self.columns = cupy.asarray(rows), cupy.asarray(columns)
        shape = (len(rows), len(columns))
        self.reference, self.scale = cupy.empty(shape, np.float64), cupy.empty(shape, np.float64)
        self._product(self.reference, absolute=False)
        self._product(self.scale, absolute=True)
        p, pointers, scalars = self._problem, self._operands.pointers, self._operands.scalars
        apply_epilogue(
            self.reference, self.scale, Axis.of(self.rows), Axis.of(self.columns), p.out.numpy,
            alpha=scalars.get("alpha", 1.0), beta=scalars.get("beta", 0.0), c=pointers.get("c", 0),
            ldc=self._operands.output.ld, bias=pointers.get("bias", 0),
        )  # fmt: skip

    def _product(self, out: Any, *, absolute: bool) -> None:
        cupy = require_cupy()
        p, pointers = self._problem, self._operands.pointers
        a, b = self._operands.tensors[0], self._operands.tensors[1]
        rows, columns = len(self.host_rows), len(self.host_columns)
        whole_k = Axis(p.k)
        row_axis = Axis.of(self.rows)
        a64 = cupy.empty(rows * p.k, np.float64)
        first, second = (row_axis, whole_k) if p.layout[0] == "n" else (whole_k, row_axis)
        gather(pointers["a"], a.dtype.numpy, a.ld, first, second, a64, absolute=absolute)
        chunk = max(1, min(columns, _ELEMENTS // p.k))
        b64 = cupy.empty(chunk * p.k, np.float64)
        handle = handle_of(cupy.cuda.get_current_stream().ptr)
        for start in range(0, columns, chunk):
            count = min(chunk, columns - start)
            column_axis = Axis(count, start, int(self.columns.data.ptr))
            first, second = (whole_k, column_axis) if p.layout[1] == "n" else (column_axis, whole_k)
            gather(pointers["b"], b.dtype.numpy, b.ld, first, second, b64, absolute=absolute)
            pitches = (p.k if p.layout[0] == "n" else rows, count if p.layout[1] == "n" else p.k, columns)
            call = GemmCall(p.layout, (rows, count, p.k), pitches, ("float64",) * 3, COMPUTE_64F)
            handle.gemm(call, int(a64.data.ptr), int(b64.data.ptr), int(out.data.ptr) + 8 * start)

    def _check(self) -> None:
        """Recompute a few entries with the problem's own reference on the CPU, from bytes copied row by row."""
        pick_r = np.unique(np.array([0, len(self.host_rows) // 2, len(self.host_rows) - 1]))
        pick_c = np.unique(np.array([0, len(self.host_columns) // 2, len(self.host_columns) - 1]))
        rows, columns = self.host_rows[pick_r], self.host_columns[pick_c]
        small, arrays = self._excerpt(rows, columns)
        expected, scale = small.reference(arrays, np.arange(len(rows)), np.arange(len(columns)))
        for name, device, host in (("reference", self.reference, expected), ("scale", self.scale, scale)):
            got = np.array([[float(device[r, c]) for c in pick_c] for r in pick_r])
            tolerance = 1e-15 * (16 + self._problem.k**0.5) * scale + 1e-300
            if not (np.abs(got - host) <= 8 * tolerance).all():
                raise LaunchError(
                    f"The {name} computed on the GPU differs from NumPy's by {np.abs(got - host).max():.3g} at rows "
                    f"{rows.tolist()}, columns {columns.tolist()}: the GPU or its libraries compute wrongly."
                )

    def _excerpt(self, rows: Any, columns: Any) -> tuple[Gemm, dict[str, Any]]:
        """The problem cut down to a few rows and columns, with its arrays on the host."""
        p, pointers = self._problem, self._operands.pointers
        small = Gemm(
            len(rows), len(columns), p.k, dtype=p.dtype, out_dtype=p.out_dtype, layout=p.layout, epilogue=p.epilogue,
            b_dtype=p.b_dtype,
        )  # fmt: skip
        arrays: dict[str, Any] = {n: np.asarray(v, np.float32) for n, v in self._operands.scalars.items()}
        where = {
            "a": (rows, None) if p.layout[0] == "n" else (None, rows),
            "b": (None, columns) if p.layout[1] == "n" else (columns, None),
            "c": (rows, columns),
            "bias": (np.zeros(1, np.int64), columns),
        }
        for t in self._operands.tensors:
            if not t.output:
                arrays[t.name] = _copied(pointers[t.name], t, *where[t.name])
        return small, arrays


def _copied(address: int, tensor: Tensor, rows: Array | None, columns: Array | None) -> Array:
    """Some rows and columns (None: all) of a device matrix, on the host."""
    if columns is None:
        assert rows is not None  # noqa: S101 - one of the two is always given
        return np.stack([_line(address, tensor, int(r) * tensor.ld, tensor.shape[1], 1) for r in rows])
    if rows is None:
        return np.stack([_line(address, tensor, int(c), tensor.shape[0], tensor.ld) for c in columns], axis=1)
    return np.array([[_line(address, tensor, int(r * tensor.ld + c), 1, 1)[0] for c in columns] for r in rows])


def _write(address: int, tensor: Tensor, place: int, value: float) -> None:
    """One element of a device matrix; waits, since the host memory is gone afterwards."""
    cupy = require_cupy()
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    host = np.array([value], np.float32).astype(tensor.dtype.np)
    target, size = address + place * tensor.dtype.bytes, tensor.dtype.bytes
    runtime.memcpyAsync(target, host.ctypes.data, size, runtime.memcpyHostToDevice, stream.ptr)
    stream.synchronize()


def _line(address: int, tensor: Tensor, start: int, count: int, step: int) -> Array:
    """``count`` elements from ``start``, ``step`` elements apart, copied to the host."""
    cupy = require_cupy()
    runtime, size = cupy.cuda.runtime, tensor.dtype.bytes
    out = np.empty(count, tensor.dtype.np)
    source, stream = address + start * size, cupy.cuda.get_current_stream()
    kind = runtime.memcpyDeviceToHost
    if step == 1:
        runtime.memcpyAsync(out.ctypes.data, source, count * size, kind, stream.ptr)
    else:
        runtime.memcpy2DAsync(out.ctypes.data, size, source, step * size, size, count, kind, stream.ptr)
    stream.synchronize()
    return out
