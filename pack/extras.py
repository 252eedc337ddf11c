"""The operands of a call beside A and B: out, bias, C, alpha, beta; read once, and checked against overlap."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from gemmtune.device.launch import POINTER_BITS
from gemmtune.pack.arrays import Arrays, Signature, arrays_of, extent
from gemmtune.pack.call import Operands
from gemmtune.space.errors import ArrayError

_NUMBERS = (int, float)


@dataclass(slots=True)
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
    if not isinstance(alpha, _NUMBERS) or not (beta is None or isinstance(beta, _NUMBERS)):
        raise ArrayError(f"alpha is {alpha!r} and beta {beta!r}, but both must be Python numbers: use float().")
    if c is None and beta:
        raise ArrayError(f"beta is {beta}, but there is no c for it to scale: pass c, or leave beta out.")
    if beta == 0:  # as in BLAS, C is not read then
        c = None
    signatures: dict[str, Signature] = {}
    addresses: dict[str, int] = {}
    key: tuple[Any, ...] = ()
    for name, array in (("d", out), ("bias", bias), ("c", c)):
        if array is None:
            continue
        if arrays_of(array) is not arrays:
            spoken = "out" if name == "d" else name
            raise ArrayError(f"a is of {arrays.name} but {spoken} of {arrays_of(array).name}: use one framework.")
        signature, address = arrays.read(array)
        signatures[name], addresses[name] = signature, address
        key += (name, signature, address & POINTER_BITS)
    alpha = float(alpha)
    scaled = c is not None or alpha != 1.0
    scale = 0.0 if c is None else 1.0 if beta is None else float(beta)
    scalars = {"alpha": alpha, "beta": scale} if scaled else {}
    return Extras(signatures, addresses, scalars, scaled, (*key, scaled))


def reach(given: Operands) -> tuple[tuple[str, int, int], ...]:
    """First and last byte (exclusive) of every array that is not empty, from its address; ``d`` first.

    Empty where the caller gave no ``out``, so that nothing can be overwritten.
    """
    if given.out is None or 0 in given.out.shape:
        return ()
    views = (("d", given.out), ("a", given.a), ("b", given.b), ("c", given.c), ("bias", given.bias))
    extents = [(name, extent(0, view)) for name, view in views if view is not None and 0 not in view.shape]
    return tuple((name, e.start, e.end) for name, e in extents)


def refuse_overlap(given: Operands, reached: tuple[tuple[str, int, int], ...], addresses: Mapping[str, int]) -> None:
    """Refuse a result that would be written over an input.

    Args:
        given: the arrays.
        reached: :func:`reach` of them, worked out once.
        addresses: where they are now, by tensor name.

    Raises:
        ArrayError: ``out`` shares memory with A, B, C or the bias.
    """
    if not reached:
        return
    _, first, last = reached[0]
    first, last = addresses["d"] + first, addresses["d"] + last
    views = {"a": given.a, "b": given.b, "c": given.c, "bias": given.bias}
    for name, start, end in reached[1:]:
        address = addresses[name]
        if address + start >= last or first >= address + end:
            continue
        view, out = views[name], given.out
        if view is None or out is None or extent(addresses["d"], out).overlaps(extent(address, view)):
            raise ArrayError(f"out shares memory with {name}, which is read while out is written: pass another array.")
