"""Whether a product whose gradient is recorded has anything of the pack: itself, or one of its gradients.

Where it has nothing, torch's own function records it: its autograd is compiled, and a step does not wait for ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from gemmtune.space.errors import GemmtuneError
from gemmtune.torch import plans
from gemmtune.torch.registry import Handle, handle_of

_ALIGNED = {f"ptr_{name}": 256 for name in ("a", "b", "bias", "d")}


def served(a: Any, b: Any, bias: Any, key: str, linear: bool) -> bool:
    """Whether a kernel of the pack serves ``a @ b + bias`` or one of the gradients that are wanted.

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
    kind = (
        "gradients", a.shape, a.stride(), a.dtype, a.requires_grad, b.shape, b.stride(), b.dtype, b.requires_grad,
        b.get_device(), None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.get_device()), device,
        linear, a.dtype is torch.float32 and plans.tf32_allowed(),
    )  # fmt: skip
    known = handle.plans()
    found = known.get(kind)
    if found is None:
        found = plans.keep(known, kind, _served(handle, a, b, bias, linear, device))
    return bool(found)


def _served(handle: Handle, a: Any, b: Any, bias: Any, linear: bool, device: int) -> bool:
    if plans.hindered(a, b, bias, device) is not None:
        return True
    unserved: dict[str, str] = {}
    with torch.no_grad():
        for product in _products(a, b, bias, linear):
            why = _refused(handle, *product, device, unserved)
            if why is None:
                return True
    for problem, why in unserved.items():
        handle.note(problem, f"torch: {why}")
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


def _like(tensor: Any) -> Any:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _refused(
    handle: Handle, a: Any, b: Any, bias: Any, linear: bool, device: int, unserved: dict[str, str]
) -> str | None:
    """Why no kernel serves one product; None where one does, or where the call is to say so."""
    call = plans.call_of(a, b, bias, linear, device)
    if isinstance(call, str):
        return call
    if call.problem is None:
        a, b, bias = (t.contiguous() if n in call.copies else t for n, t in (("a", a), ("b", b), ("bias", bias)))
        return _refused(handle, a, b, bias, linear, device, unserved)
    try:
        state = plans.machine.state(handle.pack, device)
        choice = state.dispatch.choose(call.problem, _ALIGNED)
    except (GemmtuneError, MemoryError):
        return None
    plans.check_device(handle, state)
    why = plans.refused(handle, choice)
    if why:
        unserved[call.problem.key] = why
    return why or None
