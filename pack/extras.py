"""The operands of a call beside A and B: out, bias, C, alpha, beta; read once, and checked against overlap."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from gemmtune.device.launch import POINTER_BITS
from gemmtune.pack.arrays import Arrays, Signature, arrays_of, extent
from gemmtune.pack.call import Operands
from gemmtune.space.errors import ArrayError


@dataclass(frozen=True)
class Extras:
    """``signatures`` and ``addresses`` by tensor name (``d`` is the caller's out); alpha and beta as numbers.

    ``key`` tells calls apart that need another plan.
    """

    signatures: Mapping[str, Signature]
    addresses: Mapping[str, int]
    scalars: Mapping[str, float]
    scaled: bool
    key: Hashable


def read_extras(arrays: Arrays, out: Any, bias: Any, c: Any, alpha: Any, beta: Any) -> Extras:
    """Read what a call gives beside A and B.

    Raises:
        ArrayError: an array of another framework or on the host; alpha or beta that are no numbers; beta without C.
    """
    for name, value in (("alpha", alpha), ("beta", 0.0 if beta is None else beta)):
        if not isinstance(value, int | float):
            raise ArrayError(f"{name} is a {type(value).__name__}, but must be a Python number: use float({name}).")
    if c is None and beta:
        raise ArrayError(f"beta is {beta}, but there is no c for it to scale: pass c, or leave beta out.")
    if beta == 0:  # as in BLAS, C is not read then
        c = None
    signatures: dict[str, Signature] = {}
    addresses: dict[str, int] = {}
    for name, array in (("d", out), ("bias", bias), ("c", c)):
        if array is None:
            continue
        if arrays_of(array) is not arrays:
            raise ArrayError(
                f"a is of {arrays.name} but {_spoken(name)} of {arrays_of(array).name}: use one framework."
            )
        signatures[name], addresses[name] = arrays.read(array)
    scale = 0.0 if c is None else 1.0 if beta is None else float(beta)
    scaled = c is not None or float(alpha) != 1.0
    low_bits = tuple(address & POINTER_BITS for address in addresses.values())
    return Extras(
        signatures=signatures,
        addresses=addresses,
        scalars={"alpha": float(alpha), "beta": scale} if scaled else {},
        scaled=scaled,
        key=(tuple(signatures.items()), low_bits, scaled),
    )


def refuse_overlap(given: Operands, addresses: Mapping[str, int]) -> None:
    """Refuse a result that would be written over an input.

    Raises:
        ArrayError: ``out`` shares memory with A, B, C or the bias.
    """
    if given.out is None:
        return
    target = extent(addresses["d"], given.out)
    for name, view in (("a", given.a), ("b", given.b), ("c", given.c), ("bias", given.bias)):
        if view is not None and target.overlaps(extent(addresses[name], view)):
            raise ArrayError(f"out shares memory with {name}, which is read while out is written: pass another array.")


def _spoken(name: str) -> str:
    return "out" if name == "d" else name
