"""Chosen rows and columns of a problem's buffers, copied to the host bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmtune.device.cuda.helpers import Axis, gather
from gemmtune.device.cuda.operands import Operands
from gemmtune.device.toolchain import require_cupy
from gemmtune.space.errors import UnsupportedError
from gemmtune.space.gemm import Gemm
from gemmtune.space.problem import Array, Tensor


def inputs_at(operands: Operands, rows: Array, columns: Array) -> dict[str, Array]:
    """What the outputs at ``rows`` x ``columns`` depend on, each as the problem stores it, and its scalars.

    Raises:
        UnsupportedError: the problem is no matrix product.
    """
    problem = operands.problem
    if not isinstance(problem, Gemm):
        raise UnsupportedError(f"Problems of kind {problem.kind!r} have no excerpt.")
    places = {
        "a": (rows, None) if problem.layout[0] == "n" else (None, rows),
        "b": (None, columns) if problem.layout[1] == "n" else (columns, None),
        "c": (rows, columns),
        "bias": (np.zeros(1, np.int64), columns),
    }
    found = {t.name: _taken(operands, t, *places[t.name]) for t in operands.tensors if not t.output}
    return {**found, **{name: np.asarray(value, np.float32) for name, value in operands.scalars.items()}}


def outputs_at(operands: Operands, rows: Array, columns: Array) -> Array:
    """The output at ``rows`` x ``columns``, as it is now."""
    return _taken(operands, operands.output, rows, columns)


def _taken(operands: Operands, tensor: Tensor, rows: Array | None, columns: Array | None) -> Array:
    """Some rows and columns (None: all) of a matrix. Widened to float64 on the way, which changes no value."""
    cupy = require_cupy()
    kept: list[Any] = [None if picked is None else cupy.asarray(picked) for picked in (rows, columns)]
    axes = [Axis(size) if k is None else Axis.of(k) for k, size in zip(kept, tensor.shape, strict=True)]
    out = cupy.empty((axes[0].count, axes[1].count), np.float64)
    gather(operands.pointers[tensor.name], tensor.dtype.numpy, tensor.ld, axes[0], axes[1], out)
    with np.errstate(invalid="ignore"):  # poison is NaN
        return np.asarray(out.get()).astype(tensor.dtype.np)
