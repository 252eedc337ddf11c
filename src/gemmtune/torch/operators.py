"""The operators, as ``torch.library`` knows them: schema, implementation, shapes for tracing, autograd, autocast.

    gemmtune::linear(Tensor a, Tensor weight, Tensor? bias, str pack, str epilogue, Tensor[] scales) -> Tensor
    gemmtune::matmul(Tensor a, Tensor b,      Tensor? bias, str pack, str epilogue, Tensor[] scales) -> Tensor

``a`` is [..., K]; ``weight`` [N, K], ``b`` [K, N]; ``bias`` [N]; the result [..., N], row-major, of a's dtype. ``pack``
is a key of :func:`gemmtune.torch.use`. ``epilogue`` and ``scales`` are the seam for fused layers and scaled types:
today the epilogue is ``"identity"``, and there are no scales.

Autograd is one :class:`torch.autograd.Function` under both. The gradients are products of their own, looked up as their
own problems in the layouts they have: for a linear layer ``dgrad = dD @ weight`` (nn) and ``wgrad = dD.T @ a`` (tn).
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from gemmtune.space.errors import UnsupportedError
from gemmtune.torch.gradients import served, traced
from gemmtune.torch.plans import as_rows, by_torch, serve

_TAIL = "Tensor? bias=None, str pack='', str epilogue='identity', Tensor[]? scales=None) -> Tensor"
_LIBRARY = torch.library.Library("gemmtune", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_LIBRARY.define(f"linear(Tensor a, Tensor weight, {_TAIL}", tags=_TAGS)
_LIBRARY.define(f"matmul(Tensor a, Tensor b, {_TAIL}", tags=_TAGS)
LINEAR = torch.ops.gemmtune.linear.default
MATMUL = torch.ops.gemmtune.matmul.default

_grad_enabled = torch.is_grad_enabled
_modes = torch._C._len_torch_dispatch_stack
_modes_on = torch.utils._python_dispatch._get_current_dispatch_mode_stack
transforms = torch._C._functorch.peek_interpreter_stack
jit_tracing = torch._C._get_tracing_state
_STRIDED = torch.strided
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def plain(a: Any, b: Any, bias: Any) -> bool:
    """Whether these are ordinary tensors in ordinary eager code: nothing traces, transforms or records."""
    return not _modes() and _ordinary(a, b, bias)


def eager(a: Any, b: Any, bias: Any) -> bool:
    """The same, be there modes that only watch: that count operations, say, or choose what a checkpoint saves.

    Whose product something is must not depend on those: what a checkpoint computes again, without them, is to be the
    same operators.
    """
    return (not _modes() or not any(_traces(mode) for mode in _modes_on())) and _ordinary(a, b, bias)


def _traces(mode: Any) -> bool:
    """Fakes, proxies and functional tensors are torch's own, which have a key."""
    return getattr(mode, "_mode_key", None) is not None


def _ordinary(a: Any, b: Any, bias: Any) -> bool:
    return (
        type(a) in PLAIN
        and type(b) in PLAIN
        and (bias is None or type(bias) in PLAIN)
        and transforms() is None
        and jit_tracing() is None
        and not (a.is_neg() or b.is_neg() or a.is_nested)
        and a.layout is _STRIDED
        and b.layout is _STRIDED
    )


def differentiable(a: Any, b: Any, bias: Any) -> bool:
    """Whether a gradient must be recorded."""
    return _grad_enabled() and (a.requires_grad or b.requires_grad or (bias is not None and bias.requires_grad))


def casts_to(tensor: Any) -> Any:
    """The dtype that autocast gives the products of a tensor; None where it is not on for the tensor's device."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def cast(tensor: Any, dtype: Any, kind: str) -> Any:
    """An operand as autocast hands it to a product."""
    return tensor.to(dtype) if _is_cast(tensor, dtype, kind) else tensor


def as_cast(tensor: Any, dtype: Any, kind: str) -> Any:
    """What stands for an operand that autocast casts, without its numbers: nothing is computed."""
    if not _is_cast(tensor, dtype, kind):
        return tensor
    return torch.empty_like(tensor, dtype=dtype, requires_grad=tensor.requires_grad)


def _is_cast(tensor: Any, dtype: Any, kind: str) -> bool:
    """Floating-point tensors of the device (``kind``) are, but for float64."""
    if tensor is None or tensor.dtype is dtype or tensor.dtype is torch.float64:
        return False
    return bool(tensor.is_floating_point()) and tensor.device.type == kind


def product(a: Any, b: Any, bias: Any, key: str, linear: bool) -> Any:
    """The product with its gradient, where one must be recorded; without autocast."""
    if not differentiable(a, b, bias):
        return below(a, b, bias, key, linear)
    if plain(a, b, bias) and not served(a, b, bias, key, linear):
        return by_torch(a, b, bias, linear)
    return Product.apply(a, b, bias, key, linear)


def below(a: Any, b: Any, bias: Any, key: str, linear: bool) -> Any:
    """The product below autograd: at once for plain tensors, else through the dispatcher, which traces it.

    Where torch traces a product that no kernel of the pack is worth calling for, it finds its own in the graph, which
    its compiler knows better than a call of ours.
    """
    if plain(a, b, bias):
        return serve(a, b, bias, key, linear, True)
    if not traced(a, b, bias, key, linear):
        return by_torch(a, b, bias, linear)
    with torch._C._AutoDispatchBelowAutograd():
        return (LINEAR if linear else MATMUL)(a, b, bias, key)


class Product(torch.autograd.Function):  # type: ignore[misc]
    """``a @ b + bias`` (``a @ b.T + bias`` where ``linear``) and its gradients; differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, bias: Any, key: str, linear: bool) -> Any:
        """The product; keeps of a and b what the wanted gradients need."""
        need_a, need_b = ctx.needs_input_grad[:2]
        ctx.save_for_backward(a if need_b else None, b if need_a else None)
        ctx.key, ctx.linear = key, linear
        return below(a, b, bias, key, linear)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        """Gradients of a, b and bias; None for the key and the layout."""
        a, b = ctx.saved_tensors
        need_a, need_b, need_bias = ctx.needs_input_grad[:3]
        key, linear = ctx.key, ctx.linear
        grad_a = grad_b = grad_bias = None
        if need_a:
            grad_a = product(grad, b if linear else b.t(), None, key, False)
        if need_b or need_bias:
            rows = as_rows(grad)
            if need_b:
                flat = as_rows(a)
                left, right = (rows, flat) if linear else (flat, rows)
                grad_b = product(left.t(), right, None, key, False)
            if need_bias:
                grad_bias = rows.sum(0)
        return grad_a, grad_b, grad_bias, None, None


def _refuse_seam(epilogue: str, scales: Any) -> NoReturn:
    raise UnsupportedError(f"The operator's epilogue is {epilogue!r} with {len(scales or ())} scales: use 'identity'.")


def _register(name: str, operator: Any, linear: bool) -> None:
    """Give one operator its kernels."""

    def run(a: Any, b: Any, bias: Any = None, pack: str = "", epilogue: str = "identity", scales: Any = None) -> Any:
        if epilogue != "identity" or scales:
            _refuse_seam(epilogue, scales)
        return serve(a, b, bias, pack, linear, True)

    def recorded(
        a: Any, b: Any, bias: Any = None, pack: str = "", epilogue: str = "identity", scales: Any = None
    ) -> Any:
        if epilogue != "identity" or scales:
            _refuse_seam(epilogue, scales)
        return product(a, b, bias, pack, linear)

    def shapes(a: Any, b: Any, bias: Any = None, pack: str = "", epilogue: str = "identity", scales: Any = None) -> Any:
        inner = b.shape[1 if linear else 0]
        torch._check(b.dim() == 2, lambda: f"b has {b.dim()} dimensions, but must have 2")
        torch._check(a.shape[-1] == inner, lambda: f"a has the shape {tuple(a.shape)}, but the sums have {inner} terms")
        return a.new_empty((*a.shape[:-1], b.shape[0 if linear else 1]))

    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, recorded, "Autograd")
    torch.library.register_fake(f"gemmtune::{name}", shapes, lib=_LIBRARY)
    for kind, dispatch_key in (("cuda", "AutocastCUDA"), ("cpu", "AutocastCPU")):
        _LIBRARY.impl(name, _autocast(operator, kind, dispatch_key), dispatch_key)


def _autocast(operator: Any, kind: str, dispatch_key: str) -> Any:
    """The operator under autocast: floating-point operands of the device are cast, as those of torch's products are."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, dispatch_key))

    def run(a: Any, b: Any, bias: Any = None, *rest: Any) -> Any:
        dtype = torch.get_autocast_dtype(kind)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operator(cast(a, dtype, kind), cast(b, dtype, kind), cast(bias, dtype, kind), *rest)

    return run


_register("linear", LINEAR, True)
_register("matmul", MATMUL, False)
