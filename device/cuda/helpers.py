"""Small kernels of the verifier: random inputs, poison checks, float64 gathers, and the comparison law on the GPU.

The comparison is that of :func:`gemmtune.device.verify.compare`; a test holds one against the other. All calls go to
CuPy's current stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gemmtune.device.cuda.source import SOURCE
from gemmtune.device.elementwise import CTYPES, compile_module
from gemmtune.device.toolchain import require_cupy
from gemmtune.device.verify import Limits
from gemmtune.space.problem import ErrorBound

_THREADS = 256
_MAX_BLOCKS = 2048


@lru_cache(maxsize=1)
def _module() -> Any:
    return compile_module(SOURCE)


@lru_cache(maxsize=64)
def _kernel(name: str) -> Any:
    return _module().get_function(name)


def load_helpers() -> None:
    """Compile and load them now, rather than with the first call."""
    _module()


def _run(name: str, count: int, *arguments: Any) -> None:
    blocks = max(1, min(_MAX_BLOCKS, -(-count // _THREADS)))
    _kernel(name)((blocks,), (_THREADS,), arguments)


@dataclass(frozen=True)
class Axis:
    """``count`` indices from position ``first`` of a device int64 array; without one ``first``, ``first`` + 1, ...."""

    count: int
    first: int = 0
    array: int = 0

    @classmethod
    def of(cls, indices: Any) -> Axis:
        """All of a CuPy int64 array; the caller keeps it alive."""
        return cls(int(indices.size), array=int(indices.data.ptr))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As the kernels take it."""
        return np.uint64(self.array), np.int64(self.count), np.int64(self.first)


def fill_normal(address: int, dtype: str, shape: tuple[int, int], ld: int, seed: int) -> None:
    """Standard normal values, rounded to the NumPy type ``dtype``; padding between rows is left alone."""
    rows, columns = shape
    arguments = (np.uint64(address), np.int64(rows), np.int64(columns), np.int64(ld), np.uint64(seed % 2**64))
    _run(f"normal_{CTYPES[dtype]}", rows * columns, *arguments)


def gather(address: int, dtype: str, ld: int, rows: Axis, columns: Axis, out: Any, *, absolute: bool = False) -> None:
    """Rows x columns of a matrix as packed float64 in ``out`` (a CuPy array of at least that many elements)."""
    count = rows.count * columns.count
    matrix = (np.uint64(address), np.int64(ld))
    _run(f"gather_{CTYPES[dtype]}", count, *matrix, *rows.arguments, *columns.arguments, np.int32(absolute), out)


def apply_epilogue(
    reference: Any,
    scale: Any,
    rows: Axis,
    columns: Axis,
    dtype: str,
    *,
    alpha: float,
    beta: float,
    c: int,
    ldc: int,
    bias: int,
) -> None:
    """The epilogue in float64, in place, on [rows, columns] arrays; ``c`` and ``bias`` are left out where 0."""
    _run(
        f"epilogue_{CTYPES[dtype]}", rows.count * columns.count, reference, scale, *rows.arguments, *columns.arguments,
        np.float64(alpha), np.float64(beta), np.uint64(c), np.int64(ldc), np.uint64(bias),
    )  # fmt: skip


@dataclass(frozen=True)
class Stats:
    """What a check counted: see :class:`gemmtune.device.verify.Comparison`. ``first`` is the linear index of the first
    wrong element in the sampled [rows, columns]; ``damage`` counts bytes changed outside the output.
    """

    relative: float
    excess: float
    mismatches: int
    wrong: int
    unwritten: int
    first: int
    damage: int

    @property
    def passed(self) -> bool:
        """Whether every compared element is within the bound and nothing else was touched."""
        return self.wrong == 0 and self.damage == 0


class StatsBuffer:
    """The counters of one check, on the device."""

    _FRESH = np.array([0, 0, 0, 0, 0, 2**64 - 1, 0], np.uint64)

    def __init__(self) -> None:
        self._array = require_cupy().empty(len(self._FRESH), np.uint64)

    def reset(self) -> None:
        """Back to nothing seen."""
        self._array.set(self._FRESH)

    def read(self) -> Stats:
        """Wait for the stream, and read."""
        host = self._array.get()
        relative, excess = host[:2].view(np.float64)
        return Stats(float(relative), float(excess), *(int(v) for v in host[2:]))

    def compare(
        self,
        d: int,
        dtype: str,
        ldd: int,
        rows: Axis,
        columns: Axis,
        reference: Any,
        scale: Any,
        bound: ErrorBound,
        limits: Limits,
    ) -> None:
        """Add the comparison of the output's rows x columns with [rows, columns] references."""
        _run(
            f"compare_{CTYPES[dtype]}", rows.count * columns.count, np.uint64(d), np.int64(ldd),
            *rows.arguments, *columns.arguments, reference, scale, np.float64(bound.accumulation),
            np.float64(bound.rounding), np.float64(limits.largest), np.float64(limits.tiny), self._array,
        )  # fmt: skip

    def count_changed(self, address: int, nbytes: int, byte: int) -> None:
        """Add how many of ``nbytes`` bytes are not ``byte``."""
        self.count_changed_rows(address, 1, 0, 0, nbytes, byte)

    def count_changed_rows(self, address: int, rows: int, pitch: int, skip: int, width: int, byte: int) -> None:
        """The same for the bytes ``skip`` to ``width`` of rows ``pitch`` bytes apart."""
        if rows <= 0 or width <= skip:
            return
        across = max(1, min(_MAX_BLOCKS, -(-(width - skip) // _THREADS)))
        _kernel("changed")(
            (across, max(1, min(rows, _MAX_BLOCKS // across))), (_THREADS,),
            (np.uint64(address), np.int64(rows), np.int64(pitch), np.int64(skip), np.int64(width), np.int32(byte),
             np.uint64(int(self._array.data.ptr) + 8 * 6)),
        )  # fmt: skip
