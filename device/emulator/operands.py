"""The operands of one emulated run: full-size guarded buffers, filled only where the chosen tiles look.

A tile of the output needs some rows of one operand and some columns of another. Only those hold random numbers; all
the rest stays poison (NaN), so that a read outside the tile's share shows in the result, and a 4096^3 problem costs no
more than the tiles that are run. Which dimension of which operand follows the output's rows or columns is found by
asking the problem at slightly larger sizes, so that nothing here knows what a GEMM is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmtune.device.emulator.launch import Buffer
from gemmtune.space.expression import expression
from gemmtune.space.problem import Array, Problem, Tensor

ROWS, COLUMNS = "rows", "columns"


@dataclass(frozen=True)
class AxisMap:
    """Which axis of the problem is where.

    ``row_axis`` and ``column_axis`` name the axes behind the output's rows and columns; ``dimensions`` says for each
    input and each of its two dimensions whether it follows the output's rows, its columns, or neither (None).
    """

    row_axis: str
    column_axis: str
    dimensions: Mapping[str, tuple[str | None, str | None]]


def output_of(problem: Problem) -> Tensor:
    """The problem's output tensor."""
    return next(t for t in problem.tensors() if t.output)


def axis_map(problem: Problem) -> AxisMap:
    """See :class:`AxisMap`."""
    now = {t.name: t.shape for t in problem.tensors()}
    output = output_of(problem).name
    grown = {
        axis: {t.name: t.shape for t in problem.with_axes(**{axis: size + 1}).tensors()}
        for axis, size in problem.axes.items()
    }
    row_axis = next(a for a, shapes in grown.items() if shapes[output][0] != now[output][0])
    column_axis = next(a for a, shapes in grown.items() if shapes[output][1] != now[output][1])

    def follows(name: str, dimension: int) -> str | None:
        for axis, word in ((row_axis, ROWS), (column_axis, COLUMNS)):
            if grown[axis][name][dimension] != now[name][dimension]:
                return word
        return None

    return AxisMap(
        row_axis, column_axis, {name: (follows(name, 0), follows(name, 1)) for name in now if name != output}
    )


def pitches(problem: Problem, like: Problem, *, padded: bool) -> dict[str, int]:
    """Row pitches in elements for ``problem``, as well aligned as those of ``like`` (up to 64 elements).

    With ``padded`` each is larger than its row, so that there is poison between the rows to be found altered.
    """
    reference = {t.name: t.ld for t in like.tensors()}
    out = {}
    for t in problem.tensors():
        step = min(reference[t.name] & -reference[t.name], 64)
        least = max(t.ld, t.shape[1])
        ld = -(-least // step) * step
        out[t.name] = ld + step if padded else ld
    return out


def window(buffer: Buffer, tensor: Tensor, ld: int) -> Array:
    """The tensor in its buffer as a 2-D array of its shape."""
    flat = buffer.view(tensor.dtype.np)
    strides = (ld * flat.itemsize, flat.itemsize)
    return np.lib.stride_tricks.as_strided(flat, shape=tensor.shape, strides=strides)


@dataclass
class Operands:
    """Buffers and numbers of one run.

    ``compact`` is the problem restricted to ``rows`` x ``columns`` of the output (sorted), ``arrays`` its inputs,
    packed; ``environment`` holds every name that the launch recipe may use.
    """

    problem: Problem
    compact: Problem
    arrays: dict[str, Array]
    rows: Array
    columns: Array
    buffers: dict[str, Buffer]
    environment: dict[str, Any]
    output: Array

    @classmethod
    def make(
        cls,
        problem: Problem,
        rows: Array,
        columns: Array,
        lds: Mapping[str, int],
        *,
        seed: int,
        at_end: bool,
        sms: int = 1,
    ) -> Operands:
        """Allocate the buffers and fill in what ``rows`` x ``columns`` of the output depend on.

        ``sms`` is what the recipe is told of the device: its multiprocessors.
        """
        axes = axis_map(problem)
        compact = problem.with_axes(**{axes.row_axis: len(rows), axes.column_axis: len(columns)})
        arrays = compact.inputs(seed)
        buffers: dict[str, Buffer] = {}
        environment = {**problem.environment(), **{f"ld{name}": ld for name, ld in lds.items()}, "sms": sms}
        environment |= {name: array.item() for name, array in arrays.items() if array.ndim == 0}
        indices = {ROWS: rows, COLUMNS: columns}
        try:
            for t in problem.tensors():
                ld = lds[t.name]
                nbytes = ((t.shape[0] - 1) * ld + t.shape[1]) * t.dtype.bytes
                buffer = buffers[t.name] = Buffer(t.name, nbytes, at_end=at_end, writable=t.output)
                environment[f"ptr_{t.name}"] = buffer.address
                view = window(buffer, t, ld)
                if t.output:
                    output = view
                else:
                    _scatter(view, arrays[t.name], [indices[d] if d else None for d in axes.dimensions[t.name]])
        except BaseException:
            for buffer in buffers.values():
                buffer.free()
            raise
        return cls(problem, compact, arrays, rows, columns, buffers, environment, output)

    def scratch(self, name: str, text: str, *, at_end: bool, zero: bool) -> Buffer | None:
        """A workspace (poison) or counters (zeros) of as many bytes as the recipe's expression says; None for 0."""
        nbytes = int(expression(text)(self.environment))
        if not nbytes:
            return None
        buffer = self.buffers[name] = Buffer(name, nbytes, at_end=at_end)
        if zero:
            buffer.view(np.dtype(np.uint8))[:] = 0
        return buffer

    def reference(self) -> tuple[Array, Array]:
        """float64 reference and scale of the compact problem, all of it."""
        return self.compact.reference(self.arrays, np.arange(len(self.rows)), np.arange(len(self.columns)))

    def free(self) -> None:
        """Unmap everything; safe to call twice."""
        self.output = np.empty((0, 0), self.output.dtype)
        for buffer in self.buffers.values():
            buffer.free()


def _scatter(view: Array, packed: Array, where: list[Array | None]) -> None:
    rows, columns = where
    if rows is not None and columns is not None:
        view[np.ix_(rows, columns)] = packed
    elif columns is not None:
        view[:, columns] = packed
    elif rows is not None:
        view[rows] = packed
    else:
        view[...] = packed
