"""What is known before the call: whether kernels of the pack are worth calling for a product, or it and its gradients.

Where they are not, torch's own function is called, recorded by its autograd, which is compiled, or traced: neither a
step nor a compiled graph waits for ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch

from gemmtune.pack.dispatch import Choice
from gemmtune.pack.schema import Point
from gemmtune.space.errors import GemmtuneError
from gemmtune.space.gemm import Gemm
from gemmtune.torch import plans
from gemmtune.torch.registry import Handle, handle_of
from gemmtune.torch.worth import Way, expected, reason, replays, worth

Tell = Literal["all", "new", "nothing"]
"""What a look-up tells the handle: who serves every product, or each that nothing is known of yet, or nothing."""
_ALIGNED = {f"ptr_{name}": 256 for name in ("a", "b", "bias", "d")}


def served(a: Any, b: Any, bias: Any, key: str, linear: bool) -> bool:
    """Whether kernels of the pack are to serve ``a @ b + bias`` or the gradients that are wanted.

    Also true where that is not for us to say, since the call itself does: no pack, a device or a dtype that none can
    serve. Tensors are taken to be aligned; a kernel that needs it and does not get it leaves its call to torch.

    Args:
        a: tensor [..., K].
        b: tensor [K, N]; [N, K] where ``linear``.
        bias: tensor [N], or None.
        key: the pack's (:func:`gemmtune.torch.registry.use`).
        linear: how b is stored.

    Raises:
        UnsupportedError: the pack was measured on other GPUs, and is in use with ``strict=True``.
    """
    handle = handle_of(key)
    device = plans.machine.index(a)
    if handle is None or device < 0:
        return True
    way: Way = "graph" if plans.machine.captured(a) else "recorded"
    kind = (
        way, a.shape, a.stride(), a.dtype, a.requires_grad, b.shape, b.stride(), b.dtype, b.requires_grad,
        b.get_device(), None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.get_device()), device,
        linear, a.dtype is torch.float32 and plans.tf32_allowed(),
    )  # fmt: skip
    known = handle.plans()
    found = known.get(kind)
    if found is None:
        found = plans.keep(known, kind, _served(handle, a, b, bias, linear, device, way))
    return bool(found)


def ever_served(handle: Handle, a: Any, b: Any, bias: Any, linear: bool, device: int, *, quiet: bool) -> bool:
    """Whether kernels are worth calling for this product in any eager code.

    With all gradients, with some, with none; in any dtype that autocast may cast to, in either precision of fp32.
    ``quiet``: nobody is told who serves the gradients; else that is told, but for what a call itself has said.
    """
    wants = ((False, True), (True, False), (True, True))
    for dtype in sorted(plans.DTYPES, key=lambda dtype: dtype is a.dtype):  # its own last, which is to be told
        for tf32 in (True, False) if dtype is torch.float32 else (False,):
            like, other, added = _like(a, dtype), _like(b, dtype), None if bias is None else _like(bias, dtype)
            if _kept(handle, like, other, added, linear, device, "eager", quiet=True, tf32=tf32):
                return True
            told = not quiet and dtype is a.dtype and tf32 is (dtype is torch.float32 and plans.tf32_allowed())
            for want_a, want_b in wants:
                like.requires_grad_(want_a)
                other.requires_grad_(want_b)
                tell: Tell = "new" if told and want_a and want_b else "nothing"
                if _served(handle, like, other, added, linear, device, "recorded", tell=tell, tf32=tf32):
                    return True
    return False


def _served(
    handle: Handle, a: Any, b: Any, bias: Any, linear: bool, device: int, way: Way, *, tell: Tell = "all",
    tf32: bool | None = None,
) -> bool:  # fmt: skip
    if plans.hindered(a, b, bias, device) is not None:
        return True
    losers: dict[str, str] = {}
    winners: dict[str, Point] = {}
    with torch.no_grad():
        for product in _products(a, b, bias, linear):
            problem = _problem(*product, device, tf32)
            if problem is None:
                continue
            found = _choice(handle, problem, device)
            if found is None:
                return True
            choice, why = found
            if why:
                losers[problem.key] = why
                continue
            point = expected(choice, problem)
            if point is None:
                return True
            winners[problem.key] = point
    points = tuple(winners.values())
    if points and worth(points, 0, way, handle.host_us):
        return True
    for key, why in (losers | {key: reason(points, way, handle.host_us) for key in winners}).items():
        if tell == "all" or (tell == "new" and key not in handle.served):
            handle.note(key, f"torch: {why}")
    return False


def _products(a: Any, b: Any, bias: Any, linear: bool) -> Iterator[tuple[Any, Any, Any, bool]]:
    """The product and its gradients' (:class:`gemmtune.torch.operators.Product`), with tensors that hold nothing."""
    wanted_a, wanted_b = a.requires_grad, b.requires_grad
    a, b = _like(a), _like(b)
    yield a, b, None if bias is None else _like(bias), linear
    if b.dim() != 2 or a.dim() < 1:
        return
    grad = a.new_empty((*a.shape[:-1], b.shape[0 if linear else 1]))
    if wanted_a:
        yield grad, b if linear else b.t(), None, False
    if wanted_b:
        rows, flat = plans.as_rows(grad), plans.as_rows(a)
        left, right = (rows, flat) if linear else (flat, rows)
        yield left.t(), right, None, False


def _like(tensor: Any, dtype: Any = None) -> Any:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype or tensor.dtype, device="meta")


def _problem(a: Any, b: Any, bias: Any, linear: bool, device: int, tf32: bool | None) -> Gemm | None:
    """What is multiplied once operands that need it are copied; None where they do not fit, or nothing is."""
    call = plans.call_of(a, b, bias, linear, device, tf32)
    if isinstance(call, str):
        return None
    if call.problem is None:
        a, b, bias = (t.contiguous() if n in call.copies else t for n, t in (("a", a), ("b", b), ("bias", bias)))
        return _problem(a, b, bias, linear, device, tf32)
    return call.problem


def _choice(handle: Handle, problem: Gemm, device: int) -> tuple[Choice, str] | None:
    """What the pack has for a problem, and why that does not win; None where the call itself is to say."""
    try:
        state = plans.machine.state(handle.pack, device)
        choice = state.dispatch.choose(problem, _ALIGNED)
    except (GemmtuneError, MemoryError):
        return None
    plans.check_device(handle, state)
    return choice, plans.refused(handle, choice, problem, "graph")


def kept(a: Any, b: Any, bias: Any, key: str, linear: bool, way: Way) -> bool:
    """Whether a kernel is worth calling for this product alone, where it is called in this way.

    Also true where that is not known before the call: no pack, no GPU, sizes that a trace leaves open, operands that
    are copied first. Makes no tensor, since a trace would take it for a part of the program.
    """
    handle, device = handle_of(key), plans.machine.index(a)
    sizes = (*a.shape, *a.stride(), *b.shape, *b.stride(), *(bias.stride() if bias is not None else ()))
    if handle is None or device < 0 or not all(type(size) is int for size in sizes):
        return True
    return _kept(handle, a, b, bias, linear, device, way, quiet=False)


def _kept(
    handle: Handle, a: Any, b: Any, bias: Any, linear: bool, device: int, way: Way, *, quiet: bool,
    tf32: bool | None = None,
) -> bool:  # fmt: skip
    if plans.hindered(a, b, bias, device) is not None:
        return True
    call = plans.call_of(a, b, bias, linear, device, tf32)
    if isinstance(call, str) or call.problem is None:
        return True
    found = _choice(handle, call.problem, device)
    if found is None:
        return True
    why = found[1] or plans.refused(handle, found[0], call.problem, way)
    if why and not quiet:
        handle.note(call.problem.key, f"torch: {why}")
    return not why


def traced(a: Any, b: Any, bias: Any, key: str, linear: bool) -> bool:
    """Whether what torch traces or transforms keeps our operator for this product, else torch's own.

    An exported program always does: it may run elsewhere, with another pack. One that torch compiles runs where it was
    traced, so that where no pack can serve (on the CPU) only a call that is to raise is kept.
    """
    if torch.compiler.is_exporting():
        return True
    handle = handle_of(key)
    if handle is not None and not handle.strict and plans.complains(handle, a, b, bias, plans.machine.index(a)):
        return False
    return kept(a, b, bias, key, linear, "graph" if replays() else "traced")
