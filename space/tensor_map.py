"""Tensor maps as plain data: how a kernel's TMA descriptor of a tensor is to be encoded, whatever its address.

A map describes a matrix in global memory and the box of it that one TMA instruction moves (PTX ISA, "Tensors": tiled
mode, no interleave, elements outside the tensor read as zero). Sizes that depend on the call are expressions over the
same names as the rest of the launch recipe. The limits are those of ``cuTensorMapEncodeTiled`` in the CUDA driver API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemmtune.space.errors import PackError
from gemmtune.space.expression import expression

ELEMENT_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "tf32": 4}
"""Element types, with their size in memory. ``tf32`` is fp32 that TMA rounds to tf32 as it loads."""
SWIZZLES = (0, 32, 64, 128)
PROMOTIONS = (0, 64, 128, 256)
ALIGNMENT = 16
"""Bytes that the tensor's address and its pitch must be multiples of."""
_MAX_EXTENT, _MAX_PITCH, _MAX_BOX = 2**32, 2**40, 256


@dataclass(frozen=True)
class BoundMap:
    """A map with its sizes worked out: everything the encoder takes but the address.

    ``extents`` and ``box`` in elements, innermost first; ``pitch``, from row to row, in bytes.
    """

    element: str
    extents: tuple[int, int]
    pitch: int
    box: tuple[int, int]
    swizzle: int
    l2_promotion: int

    @property
    def box_bytes(self) -> int:
        """Bytes that one load brings, and that its mbarrier counts."""
        return self.box[0] * self.box[1] * ELEMENT_BYTES[self.element]


@dataclass(frozen=True)
class TensorMapSpec:
    """How to encode a tensor map.

    ``element``: one of :data:`ELEMENT_BYTES`. ``extents``: the matrix in elements, innermost first, as expressions.
    ``pitch``: bytes from row to row, as an expression. ``box``: elements of one transfer, innermost first.
    ``swizzle``: 0, 32, 64 or 128 bytes. ``l2_promotion``: the least bytes the L2 fetches at once, 0, 64, 128 or 256.
    """

    element: str
    extents: tuple[str, str]
    pitch: str
    box: tuple[int, int]
    swizzle: int = 128
    l2_promotion: int = 256

    def unmet(self, name: str, env: Mapping[str, Any]) -> str | None:
        """Why tensor ``name`` cannot have this map with the bound names ``env``, or None.

        Raises:
            ExpressionError: a name is missing.
        """
        bound = self.bind(env)
        if not all(1 <= extent <= _MAX_EXTENT for extent in bound.extents):
            return f"the map of {name} would have the extents {bound.extents}, but each must be 1 to 2**32"
        if bound.pitch % ALIGNMENT or not 0 < bound.pitch < _MAX_PITCH:
            return f"rows of {name} are {bound.pitch} bytes apart, but TMA needs a multiple of {ALIGNMENT} below 2**40"
        if env.get(f"ptr_{name}", 0) % ALIGNMENT:
            return f"the address of {name} is not a multiple of {ALIGNMENT} bytes"
        return None

    def bind(self, env: Mapping[str, Any]) -> BoundMap:
        """The sizes for the bound names ``env``, where :meth:`unmet` has nothing against them.

        Raises:
            ExpressionError: a name is missing.
        """
        inner, rows = (int(expression(text)(env)) for text in self.extents)
        return BoundMap(
            self.element, (inner, rows), int(expression(self.pitch)(env)), self.box, self.swizzle, self.l2_promotion
        )

    def check(self) -> None:
        """Check what does not depend on a call.

        Raises:
            PackError: a value that no tensor map can have.
            ExpressionError: an expression that is not allowed.
        """
        for text in (*self.extents, self.pitch):
            expression(text)
        named = isinstance(self.element, str) and self.element in ELEMENT_BYTES
        known = named and self.swizzle in SWIZZLES and self.l2_promotion in PROMOTIONS
        if not known or not all(type(n) is int for n in (*self.box, self.swizzle, self.l2_promotion)):
            raise PackError(f"The launch recipe has a tensor map that does not exist: {self}.")
        if not all(1 <= size <= _MAX_BOX for size in self.box):
            raise PackError(f"The launch recipe has a tensor map with the box {self.box}: each side must be 1 to 256.")
        line = self.box[0] * ELEMENT_BYTES[self.element]
        if line % ALIGNMENT or (self.swizzle and line > self.swizzle):
            raise PackError(
                f"The launch recipe has a tensor map whose box has lines of {line} bytes: they must be a multiple of "
                f"{ALIGNMENT}, and at most the {self.swizzle} bytes of the swizzle."
            )

    @classmethod
    def from_json(cls, data: Any) -> TensorMapSpec:
        """Read a map from JSON data; :meth:`check` checks its values.

        Raises:
            TypeError, ValueError, KeyError: a missing or unknown field.
        """
        fields = dict(data)
        (inner, rows), (width, height) = fields.pop("extents"), fields.pop("box")
        return cls(extents=(inner, rows), box=(width, height), **fields)
