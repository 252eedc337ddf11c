"""What is to be computed: the Problem protocol and the registry of problem kinds.

Nothing outside a problem kind assumes its axes: tools speak of ``axes``, ``tensors``, ``key``, ``flops`` and ``bytes``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from gemmtune.space.dtypes import DType
from gemmtune.space.errors import ProblemError, UnknownNameError

if TYPE_CHECKING:
    import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


@dataclass(frozen=True)
class Tensor:
    """One operand: ``shape`` (rows, columns) as stored, ``ld`` from row to row in elements, ``output`` or input."""

    name: str
    dtype: DType
    shape: tuple[int, int]
    ld: int
    output: bool = False

    @property
    def elements(self) -> int:
        """Elements of the buffer, from the first to the last one used."""
        rows, columns = self.shape
        return 0 if 0 in self.shape else (rows - 1) * self.ld + columns

    @property
    def bytes(self) -> int:
        """Bytes read or written (padding between rows not counted)."""
        return self.shape[0] * self.shape[1] * self.dtype.bytes


@dataclass(frozen=True)
class ErrorBound:
    """Componentwise bound ``|d - ref| <= accumulation * scale + rounding * |ref|``, scale = |A| |B| (and |C|, |bias|).

    ``relative`` = accumulation + rounding bounds ``max |d - ref| / scale``, the figure that tables show.
    """

    accumulation: float
    rounding: float

    @property
    def relative(self) -> float:
        """Bound of max |d - ref| / scale."""
        return self.accumulation + self.rounding


@runtime_checkable
class Problem(Protocol):
    """A problem of any kind: frozen and hashable."""

    kind: ClassVar[str]

    @property
    def key(self) -> str:
        """Canonical one-line text; equal keys mean equal problems."""
        ...

    @property
    def axes(self) -> Mapping[str, int]:
        """Named sizes, e.g. ``{"m": 4096, "n": 4096, "k": 4096}``."""
        ...

    @property
    def flops(self) -> int:
        """Floating-point operations (a multiply-add is two)."""
        ...

    @property
    def bytes(self) -> int:
        """Fewest bytes through device memory: every input read once, every output written once."""
        ...

    def tensors(self) -> tuple[Tensor, ...]:
        """The operands, inputs first."""
        ...

    def environment(self) -> dict[str, Any]:
        """Names and values for expressions: axes, leading dimensions, dtype names and sizes, layout, epilogue."""
        ...

    def with_axes(self, **axes: int) -> Problem:
        """The same problem at other sizes."""
        ...

    def inputs(self, seed: int) -> dict[str, Array]:
        """Seeded random inputs by tensor name, each of its stored shape and NumPy dtype, plus scalars as 0-d arrays."""
        ...

    def reference(self, arrays: Mapping[str, Array], rows: Array, columns: Array) -> tuple[Array, Array]:
        """float64 (reference, scale) at the output's ``rows`` x ``columns`` (index arrays), from stored inputs."""
        ...

    def error_bound(self) -> ErrorBound:
        """The bound a correct kernel meets; it follows from the reduction length, accumulation and output rounding."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Plain data that :func:`problem_from_json` reads back; has ``"kind"``."""
        ...


_KINDS: dict[str, Callable[[Mapping[str, Any]], Problem]] = {}
_SHIPPED = ("gemmtune.space.gemm",)
"""Modules that register the kinds gemmtune ships; imported when a problem is first read."""


def register_problem(kind: str, read: Callable[[Mapping[str, Any]], Problem]) -> None:
    """Make a problem kind known to histories and packs; ``read`` is its ``from_json``."""
    _KINDS[kind] = read


def shape_of(axes: Mapping[str, int]) -> str:
    """The sizes alone as text: 4096x4096x1024."""
    return "x".join(map(str, axes.values()))


def problem_from_json(data: Mapping[str, Any]) -> Problem:
    """Read a problem of any registered kind.

    Raises:
        UnknownNameError: its kind is not registered.
        ProblemError: its fields are missing or out of range.
    """
    for module in _SHIPPED:
        importlib.import_module(module)
    kind = data.get("kind")
    if kind not in _KINDS:
        raise UnknownNameError(f"Unknown problem kind {kind!r}: known are {', '.join(sorted(_KINDS))}.")
    try:
        return _KINDS[str(kind)](data)
    except (KeyError, TypeError) as error:
        raise ProblemError(f"Problem {dict(data)!r} lacks or misnames a field: {error}.") from None
