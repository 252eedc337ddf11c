"""Element types: their size, NumPy type, C type in a kernel, and unit roundoff."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmtune.space.errors import UnknownNameError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class DType:
    """One element type.

    ``numpy`` is the name of the storage type (bf16 comes from ``ml_dtypes``; tf32 is stored as float32).
    ``ctype`` is its name in kernel source. ``roundoff`` is the unit roundoff u of rounding to nearest *into* the
    type: 2**-(p) for p bits of significand including the hidden one.
    """

    name: str
    bytes: int
    numpy: str
    ctype: str
    roundoff: float

    @property
    def np(self) -> np.dtype[Any]:
        """The NumPy storage dtype."""
        import numpy as np

        if self.numpy == "bfloat16":
            import ml_dtypes

            bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return bfloat16
        return np.dtype(self.numpy)


FP32 = DType("fp32", 4, "float32", "float", 2.0**-24)
TF32 = DType("tf32", 4, "float32", "float", 2.0**-11)
FP16 = DType("fp16", 2, "float16", "hw::f16", 2.0**-11)
BF16 = DType("bf16", 2, "bfloat16", "hw::bf16", 2.0**-8)

DTYPES: dict[str, DType] = {t.name: t for t in (FP32, TF32, FP16, BF16)}


def dtype(name: str) -> DType:
    """The element type called ``name``; raises :class:`UnknownNameError` listing the known ones."""
    try:
        return DTYPES[name]
    except KeyError:
        raise UnknownNameError(f"Unknown dtype {name!r}: choose one of {', '.join(DTYPES)}.") from None
