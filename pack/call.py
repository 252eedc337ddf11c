"""What one call of ``matmul`` asks for: the arrays checked, their layouts recognised, the problem named.

Pure logic over :class:`gemmtune.pack.arrays.View`: no GPU, no framework. The result depends on shapes, strides and
dtypes alone, so that a pack computes it once and keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NoReturn

from gemmtune.pack.arrays import View, matrix_layout
from gemmtune.space.errors import ArrayError
from gemmtune.space.gemm import Gemm

Action = Literal["run", "copy", "empty", "zero_k"]
PRECISIONS = ("fp32", "tf32")


@dataclass(frozen=True)
class Operands:
    """The arrays of one call; None where the caller gave none. ``scaled``: whether alpha, beta or C matter."""

    a: View
    b: View
    c: View | None = None
    bias: View | None = None
    out: View | None = None
    scaled: bool = False


@dataclass(frozen=True)
class Call:
    """What is to be done.

    ``action``: ``run`` the ``problem``; first ``copy`` the arrays named in ``copies`` to row-major ones; or the result
    is ``empty``; or K is 0 (``zero_k``) and the sum has no terms. ``staged``: the result is computed into a new array
    and then copied into the caller's, whose strides no kernel writes. ``dtype`` is that of A and B.
    """

    action: Action
    dtype: str
    shape: tuple[int, int]
    out_dtype: str
    problem: Gemm | None = None
    copies: frozenset[str] = field(default_factory=frozenset)
    staged: bool = False


def plan_call(given: Operands, out_dtype: str | None, precision: str) -> Call:
    """Check the arrays of a call and say what is to be done.

    Args:
        given: A [M,K], B [K,N], and what else there is.
        out_dtype: our name of the result's dtype; None for that of ``out``, else of A.
        precision: ``tf32`` computes fp32 arrays on tensor cores with inputs rounded to 10 bits; ``fp32`` never does.

    Raises:
        ArrayError: a rank, shape, dtype or device that does not fit; the message has the values.
    """
    a, b = given.a, given.b
    for name, view in (("a", a), ("b", b)):
        if len(view.shape) != 2:
            _refuse(f"{name} has {len(view.shape)} dimensions (shape {view.shape}), but must have 2: reshape it.")
    if a.shape[1] != b.shape[0]:
        _refuse(f"a has the shape {a.shape} and b {b.shape}: the columns of a ({a.shape[1]}) must be the rows of b.")
    if a.dtype != b.dtype:
        _refuse(f"a is {a.dtype} but b is {b.dtype}: convert one of them.")
    if precision not in PRECISIONS:
        _refuse(f"Precision {precision!r} does not exist: choose one of {', '.join(PRECISIONS)}.")
    if precision == "tf32" and a.dtype != "fp32":
        _refuse(f"precision='tf32' is for float32 arrays, but a is {a.dtype}: leave it out.")
    shape, k = (a.shape[0], b.shape[1]), a.shape[1]
    wanted = _output(given, shape, out_dtype)
    epilogue = _epilogue(given, shape, wanted)
    _check_devices(given)
    if 0 in shape:
        return Call("empty", a.dtype, shape, wanted)

    copies: set[str] = set()
    pitch, staged = _pitch(given, shape)
    if given.bias is not None and (given.bias.strides is None or (shape[1] > 1 and given.bias.strides[-1] != 1)):
        copies.add("bias")
    if given.c is not None:
        found = matrix_layout(shape, given.c.strides, "n")
        if found is None or found[0] != "n" or found[1] != pitch:
            # C has the pitch of D: both packed, then
            if found != ("n", shape[1]):
                copies.add("c")
            pitch, staged = shape[1], staged or (given.out is not None and pitch != shape[1])
    if k == 0:
        return Call("copy" if copies else "zero_k", a.dtype, shape, wanted, copies=frozenset(copies), staged=staged)
    layout_a, layout_b = matrix_layout(a.shape, a.strides, "n"), matrix_layout(b.shape, b.strides, "t")
    if layout_a is None:
        copies.add("a")
    if layout_b is None:
        copies.add("b")
    if copies or layout_a is None or layout_b is None:
        return Call("copy", a.dtype, shape, wanted, copies=frozenset(copies), staged=staged)
    problem = Gemm(
        m=shape[0],
        n=shape[1],
        k=k,
        dtype=precision if a.dtype == "fp32" else a.dtype,
        out_dtype=wanted,
        layout=layout_a[0] + layout_b[0],
        epilogue=epilogue,
        lda=layout_a[1],
        ldb=layout_b[1],
        ldd=pitch,
    )
    return Call("run", a.dtype, shape, wanted, problem=problem, staged=staged)


def _refuse(text: str) -> NoReturn:
    raise ArrayError(text)


def _output(given: Operands, shape: tuple[int, int], out_dtype: str | None) -> str:
    out = given.out
    if out is None:
        return out_dtype or given.a.dtype
    if out.shape != shape:
        _refuse(f"out has the shape {out.shape}, but a and b give {shape}.")
    if out_dtype is not None and out.dtype != out_dtype:
        _refuse(f"out is {out.dtype}, but out_dtype asks for {out_dtype}: give one of them.")
    return out.dtype


def _epilogue(given: Operands, shape: tuple[int, int], out_dtype: str) -> str:
    c, bias = given.c, given.bias
    if bias is not None:
        if given.scaled:
            _refuse("bias cannot be combined with c, alpha or beta: add the bias to c, or call twice.")
        if bias.shape not in ((shape[1],), (1, shape[1])):
            _refuse(f"bias has the shape {bias.shape}, but the result has {shape[1]} columns.")
    if c is not None and c.shape != shape:
        _refuse(f"c has the shape {c.shape}, but the result has {shape}.")
    for name, view in (("c", c), ("bias", bias)):
        if view is not None and view.dtype != out_dtype:
            _refuse(f"{name} is {view.dtype}, but the result is {out_dtype}: convert it.")
    return "bias" if bias is not None else "alpha_beta" if given.scaled else "identity"


def _check_devices(given: Operands) -> None:
    views = {"a": given.a, "b": given.b, "c": given.c, "bias": given.bias, "out": given.out}
    devices = {name: view.device for name, view in views.items() if view is not None}
    if len(set(devices.values())) > 1:
        where = ", ".join(f"{name} on {device}" for name, device in devices.items())
        _refuse(f"The arrays are on different GPUs ({where}): move them to one.")


def _pitch(given: Operands, shape: tuple[int, int]) -> tuple[int, bool]:
    """The leading dimension that a kernel writes with, and whether the result is staged."""
    out = given.out
    if out is None:
        return shape[1], False
    if out.strides is None or any(s == 0 and n > 1 for s, n in zip(out.strides, out.shape, strict=True)):
        _refuse(
            f"out has the shape {out.shape} and strides {out.strides}, so that elements share memory: pass another."
        )
    found = matrix_layout(out.shape, out.strides, "n")
    if found is None or found[0] != "n":
        return shape[1], True
    return found[1], False
