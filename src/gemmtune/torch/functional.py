"""``linear`` and ``matmul`` by a pack, as functions that never fail where torch's own would not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from gemmtune.pack.runtime import Pack
from gemmtune.torch import gradients, plans, registry
from gemmtune.torch.operators import (
    LINEAR,
    MATMUL,
    Product,
    as_cast,
    casts_to,
    differentiable,
    eager,
    jit_tracing,
    plain,
    transforms,
)

_autocast = torch._C._is_any_autocast_enabled
_compiling = torch.compiler.is_compiling
_exporting = torch.compiler.is_exporting


def linear(a: Any, weight: Any, bias: Any = None, *, pack: Pack | str | Path) -> Any:
    """``a @ weight.T + bias``, as ``torch.nn.functional.linear``, by the kernel that the pack knows for it.

    Args:
        a: tensor [..., K] of float32, float16 or bfloat16.
        weight: tensor [N, K].
        bias: tensor [N], or None.
        pack: a loaded pack, its path, or its key (:func:`gemmtune.torch.use`).

    Returns:
        Tensor [..., N]; differentiable.

    Raises:
        PackError: there is no good pack at the path.
        UnsupportedError: the pack cannot serve, and is in use with ``strict=True``.
    """
    return by_key(a, weight, bias, registry.use(pack), True)


def matmul(a: Any, b: Any, bias: Any = None, *, pack: Pack | str | Path) -> Any:
    """``a @ b + bias`` for a [..., K] and b [K, N]; see :func:`linear`."""
    return by_key(a, b, bias, registry.use(pack), False)


def by_key(a: Any, b: Any, bias: Any, key: str, linear: bool) -> Any:
    """The product, by the shortest way: past the dispatcher for plain tensors, by the operator where torch traces."""
    if _compiling():
        return (LINEAR if linear else MATMUL)(a, b, bias, key if _exporting() else _compiled(key))
    if plain(a, b, bias) and not _autocast():
        if differentiable(a, b, bias):
            if gradients.served(a, b, bias, key, linear):
                return Product.apply(a, b, bias, key, linear)
            return plans.by_torch(a, b, bias, linear)
        return plans.serve(a, b, bias, key, linear)
    if foreign(a, b, bias):
        return plans.by_torch(a, b, bias, linear)
    return (LINEAR if linear else MATMUL)(a, b, bias, key)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _compiled(key: str) -> str:
    return registry.compiled(key)


OURS, TORCHS = -2, -1
"""Whose product something is in eager code; an index of a GPU: torch's, unless a CUDA graph is captured there."""


def whose(a: Any, b: Any, bias: Any, key: str, linear: bool) -> int | None:
    """Whose product :func:`by_key` makes of operands of these shapes in eager code; None where that is not known yet.

    Torch's own function is right for them in any case: to remember this for other operands costs time at worst.

    Raises:
        UnsupportedError: the pack cannot serve, and is in use with ``strict=True``.
    """
    handle = registry.handle_of(key)
    if handle is None or not eager(a, b, bias) or plans.machine.captured(a):
        return None
    with _disable_current_modes():  # what watches is not to see what is made to ask
        return _whose(handle, a, b, bias, key, linear)


def _whose(handle: registry.Handle, a: Any, b: Any, bias: Any, key: str, linear: bool) -> int:
    device = plans.machine.index(a)
    dtype = casts_to(a) if device >= 0 and _autocast() else None
    if dtype is not None:
        a, b, bias = (as_cast(t, dtype, a.device.type) for t in (a, b, bias))
    if plans.complains(handle, a, b, bias, device) is not None:
        return TORCHS
    if differentiable(a, b, bias):
        ours = gradients.served(a, b, bias, key, linear)
    else:
        ours = gradients.kept(a, b, bias, key, linear, "eager")
    return OURS if ours else device


def everywhere(a: Any, weight: Any, bias: Any, key: str, found: int, *, quiet: bool) -> bool:
    """Whether what :func:`whose` found is torch's in any eager code: with gradients or without, under autocast or not.

    ``quiet``: nobody is told who serves the gradients.
    """
    handle = registry.handle_of(key)
    if handle is None or found == OURS or a.dtype is not weight.dtype:
        return False
    with _disable_current_modes():
        return found == TORCHS or not gradients.ever_served(handle, a, weight, bias, True, found, quiet=quiet)


def foreign(*tensors: Any) -> bool:
    """Whether one is no plain matrix: nested, sparse, of a subclass that knows torch's operators but not ours, a proxy.

    Also where a transform works, or torch's older tracer, whose programs run without us.
    """
    if transforms() is not None or jit_tracing() is not None:
        return True
    return any(
        t is not None
        and (getattr(type(t), "__torch_dispatch__", None) is not _DISABLED or t.is_nested or t.layout is not _STRIDED)
        and not _traces(t)
        for t in tensors
    )


_DISABLED = torch.Tensor.__torch_dispatch__
_STRIDED = torch.strided


def _traces(tensor: Any) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return isinstance(tensor, FakeTensor | FunctionalTensor)


def explain(a: Any, b: Any, bias: Any = None, *, pack: Pack | str | Path, linear: bool = True) -> str:
    """Who multiplies these tensors and why, in one sentence; launches nothing.

    Args:
        a: tensor [..., K].
        b: weight [N, K]; [K, N] with ``linear=False``.
        bias: tensor [N], or None.
        pack: a loaded pack, its path, or its key.
        linear: how b is stored.
    """
    key = registry.use(pack)
    handle = registry.handle_of(key)
    if handle is None:
        return "torch: no pack"
    device = plans.machine.index(a)
    hindrance = plans.hindered(a, b, bias, device)
    if hindrance is not None:
        return f"torch: {hindrance[1]}"
    tensors = {"a": a, "b": b, "bias": bias}
    addresses = {name: t.data_ptr() for name, t in tensors.items() if t is not None}
    taken = plans.machine.captured(a)
    if differentiable(a, b, bias):
        if not gradients.served(a, b, bias, key, linear):
            call = plans.call_of(a, b, bias, linear, device)
            problem = None if isinstance(call, str) else call.problem
            return handle.served.get(problem.key, "torch: none of its gradients") if problem else f"torch: {call}"
        taken = True
    stream, way = plans.machine.stream(device), plans.way_of(taken)
    plan = plans.plan_of(handle, a, b, bias, linear, addresses, device, stream, way)
    if plan.copies:
        a, b, bias = (t.contiguous() if n in plan.copies else t for n, t in tensors.items())
        return explain(a, b, bias, pack=key, linear=linear)
    return plan.why if plan.run is not None else f"torch: {plan.why}"
