"""Verification that knows nothing of where a kernel ran: the componentwise law, poison, guard zones, sampling.

All of it is NumPy on the CPU. The emulator uses it directly; the CUDA engine holds the same law in a kernel of its own
for large outputs (:mod:`gemmtune.device.cuda.helpers`) and the tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemmtune.space.dtypes import DType
from gemmtune.space.problem import Array, ErrorBound, Problem

POISON = 0xFF
"""Byte that fills what must be written and what must not be touched. A word of it is a NaN in fp32, fp16 and bf16, and
not the NaN that arithmetic produces (0x7fffffff, 0x7fff), so that an unwritten element differs from a computed NaN."""

STEPS = (8, 16, 32, 64, 96, 128, 192, 256)
"""Tile sizes around whose multiples rows and columns are sampled: where tiles meet is where kernels go wrong."""


@dataclass(frozen=True)
class Limits:
    """Range of an output type: its ``largest`` finite value and ``tiny``, half the spacing of its subnormals.

    A correctly rounded value below the normal range is off by up to ``tiny`` whatever its size, which no relative
    bound covers; one beyond ``largest`` is an infinity.
    """

    largest: float = float("inf")
    tiny: float = 0.0

    @classmethod
    def of(cls, dtype: DType) -> Limits:
        """The limits of an element type."""
        return _LIMITS[dtype.numpy]


_LIMITS = {
    "float32": Limits(float(np.finfo(np.float32).max), 2.0**-150),
    "float16": Limits(65504.0, 2.0**-25),
    "bfloat16": Limits(float.fromhex("0x1.fep127"), 2.0**-134),
}


@dataclass(frozen=True)
class Comparison:
    """An output against its reference.

    ``rel_error`` = max |d - ref| / scale and ``excess`` = max |d - ref| / (accumulation * scale + rounding * |ref|),
    over the finite elements; ``excess`` is infinite where an element with scale 0 differs. ``mismatches`` counts
    elements whose NaN or infinity is not the reference's (an unwritten element is among them). ``worst`` is the
    (row, column) of the output that is furthest off; ``detail`` says in words what was wrong there.
    """

    rel_error: float
    excess: float
    mismatches: int
    worst: tuple[int, int]
    compared: int
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether every element is within the bound."""
        return self.mismatches == 0 and self.excess <= 1.0


def compare(
    d: Array,
    reference: Array,
    scale: Array,
    bound: ErrorBound,
    *,
    rows: Array | None = None,
    columns: Array | None = None,
    limits: Limits | None = None,
) -> Comparison:
    """Compare an output with its float64 reference, element by element.

    Args:
        d: the output, [r, c], of any float type.
        reference: float64 [r, c], as :meth:`Problem.reference` gives it.
        scale: float64 [r, c], likewise.
        bound: the problem's bound.
        rows: which rows of the whole output these are, for messages; by default 0, 1, 2, ...
        columns: likewise.
        limits: range of the output type; by default without limits.

    Raises:
        ValueError: the three shapes differ.
    """
    if not d.shape == reference.shape == scale.shape or d.ndim != 2:
        raise ValueError(
            f"Shapes of output {d.shape}, reference {reference.shape} and scale {scale.shape} must be one 2-D shape."
        )
    if d.size == 0:
        return Comparison(0.0, 0.0, 0, (0, 0), 0)
    limits = limits or Limits()
    value = np.asarray(d, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        tolerance = bound.accumulation * scale + bound.rounding * np.abs(reference) + limits.tiny
        size = np.abs(reference)
        overflows = size - tolerance > limits.largest * (1 + bound.rounding)  # must come out as infinity
        may_overflow = size + tolerance >= limits.largest
        expected = np.where(overflows & np.isfinite(reference), np.copysign(np.inf, reference), reference)
        same = (np.isnan(expected) & np.isnan(value)) | (expected == value)
        same |= may_overflow & np.isinf(value) & (np.signbit(value) == np.signbit(reference))
        numeric = np.isfinite(expected) & np.isfinite(value)
        mismatch = ~numeric & ~same
        difference = np.where(numeric & ~same, np.abs(value - expected), 0.0)
        exact = scale == 0  # nothing was summed here: only the exact value will do
        excess = np.where(difference == 0, 0.0, np.where(exact, np.inf, difference / tolerance))
        beyond = np.maximum(difference - limits.tiny, 0.0)
        relative = np.where(difference == 0, 0.0, np.where(exact, np.inf, beyond / scale))
    badness = np.where(mismatch, np.inf, excess)
    r, c = np.unravel_index(int(np.argmax(badness)), badness.shape)
    worst = (int(r if rows is None else rows[r]), int(c if columns is None else columns[c]))
    mismatches = int(np.count_nonzero(mismatch))
    top = float(excess.max())
    detail = ""
    if mismatches or top > 1:
        bad = int(np.count_nonzero(badness > 1))
        shown = f"{value[r, c]:.9g} where {expected[r, c]:.9g} is right"
        detail = f"{bad} of {d.size} elements are wrong, worst at row {worst[0]}, column {worst[1]}: {shown}"
        if np.isnan(value[r, c]):
            detail += " (not written, or computed from memory that nothing wrote)"
    return Comparison(float(relative.max()), top, mismatches, worst, int(d.size), detail)


# ------------------------------------------------------------------------------------------------ poison and guards


def poison(buffer: Array) -> None:
    """Fill a contiguous buffer with the poison, in place."""
    buffer.view(np.uint8).fill(POISON)


def unwritten(buffer: Array) -> int:
    """How many elements of a buffer still hold the poison, bit for bit."""
    flat = np.ascontiguousarray(buffer).reshape(-1)
    if flat.size == 0:
        return 0
    words = flat.view(np.uint8).reshape(flat.size, flat.dtype.itemsize)
    return int(np.count_nonzero((words == POISON).all(axis=1)))


def padding_damage(flat: Array, shape: tuple[int, int], ld: int) -> int:
    """How many elements between the rows of a matrix (``ld`` apart in ``flat``) lost their poison."""
    rows, columns = shape
    damaged = 0
    for row in range(rows - 1):  # after the last row comes the guard zone
        gap = flat[row * ld + columns : (row + 1) * ld]
        damaged += gap.size - unwritten(gap)
    return damaged


class GuardedBuffer:
    """``nbytes`` of poisoned memory between two poisoned guard zones.

    Args:
        nbytes: payload size.
        guard: size of each guard zone in bytes; the payload starts at an address that is a multiple of ``alignment``.
    """

    def __init__(self, nbytes: int, guard: int = 4096, alignment: int = 256) -> None:
        whole = np.full(nbytes + 2 * guard + alignment, POISON, np.uint8)
        self._start = guard + (-(whole.ctypes.data + guard)) % alignment
        self._nbytes = nbytes
        self._whole = whole

    @property
    def payload(self) -> Array:
        """The bytes between the guards."""
        return self._whole[self._start : self._start + self._nbytes]

    def damage(self) -> str:
        """What was written outside the payload, in words; empty where nothing was."""
        before, after = self._whole[: self._start], self._whole[self._start + self._nbytes :]
        low, high = np.flatnonzero(before != POISON), np.flatnonzero(after != POISON)
        if low.size:
            ahead = self._start - int(low[-1])
            return f"{low.size} bytes were written before the buffer, the nearest {ahead} bytes ahead of it"
        if high.size:
            return (
                f"{high.size} bytes were written past the end of the buffer, the first {int(high[0])} bytes behind it"
            )
        return ""


# ------------------------------------------------------------------------------------------------------- sampling


def output_shape(problem: Problem) -> tuple[int, int]:
    """Rows and columns of the problem's output."""
    return next(t.shape for t in problem.tensors() if t.output)


def sample_axis(size: int, count: int, rng: np.random.Generator, always: Sequence[int] = ()) -> Array:
    """Sorted indices along an axis: all of them where ``size <= count``; else both edges, places where tiles of any
    usual size meet, and a random rest, ``count`` in all. ``always`` are taken first.
    """
    if size <= count:
        return np.arange(size, dtype=np.int64)
    chosen = dict.fromkeys(i for i in (*always, 0, size - 1, 1, size - 2) if 0 <= i < size)
    for step in STEPS:
        last = (size - 1) // step * step  # where the last, perhaps ragged, tile begins
        inner = int(rng.integers(1, max(2, size // step))) * step
        chosen |= dict.fromkeys(i for i in (last, last - 1, inner, inner - 1) if 0 <= i < size)
    picked = list(chosen)[:count]
    rest = np.setdiff1d(rng.choice(size, size=min(size, 2 * count), replace=False), np.array(picked))
    rest = rng.permutation(rest)[: count - len(picked)]
    return np.sort(np.concatenate([np.array(picked, np.int64), rest.astype(np.int64)]))


def sample_indices(problem: Problem, seed: int, limit: int = 2**20) -> tuple[Array, Array]:
    """Rows and columns of the output to compare, int64: all where there are at most ``limit`` elements, else a sample.

    A sample has about ``limit`` elements: a random one plus every edge, as :func:`sample_axis` describes. A fresh seed
    looks elsewhere each time.
    """
    rows, columns = output_shape(problem)
    if rows * columns <= limit:
        return np.arange(rows, dtype=np.int64), np.arange(columns, dtype=np.int64)
    rng = np.random.default_rng(seed)
    side = int(limit**0.5)
    r = min(rows, max(side, limit // columns))
    c = min(columns, max(1, limit // r))
    return sample_axis(rows, r, rng), sample_axis(columns, c, rng)
