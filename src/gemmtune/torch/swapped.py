"""The class that a swapped ``nn.Linear`` has: torch's own product at the least cost, or a kernel's."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.module import _global_backward_hooks as _backward_hooks
from torch.nn.modules.module import _global_backward_pre_hooks as _backward_pre_hooks
from torch.nn.modules.module import _global_forward_hooks as _forward_hooks
from torch.nn.modules.module import _global_forward_pre_hooks as _forward_pre_hooks

from gemmtune.torch import plans, registry
from gemmtune.torch.functional import OURS, TORCHS, by_key, everywhere, whose
from gemmtune.torch.operators import PLAIN, casts_to, eager
from gemmtune.torch.plans import DEFAULT_STREAM

MAX_SHAPES = 1024
"""Shapes of inputs remembered a layer, and kinds of layers a pack."""
_autocast = torch._C._is_any_autocast_enabled
_dynamo = torch.compiler.is_dynamo_compiling
_functional = torch.nn.functional
_grad_enabled = torch.is_grad_enabled
_stream = plans.current_stream
_Tensor = torch.Tensor


class _Compiler:
    """Says what ``torch.compiler`` does in public, for a torch without the flag that it reads."""

    @property
    def _is_compiling_flag(self) -> bool:
        return bool(torch.compiler.is_compiling())


# ``is_compiling()`` is two calls of Python's, in code that is to make none.
_compiler: Any = torch.compiler if hasattr(torch.compiler, "_is_compiling_flag") else _Compiler()


class Linear(torch.nn.Linear):  # type: ignore[misc]
    """``nn.Linear`` by the kernels of a pack, whose key is in ``gemmtune_pack``.

    :func:`gemmtune.torch.optimize_` makes it.
    """

    gemmtune_pack: str
    gemmtune_left: dict[int, int]
    """Elements of inputs that all eager code leaves to torch, and whose product they are (:func:`whose`). Layers of a
    kind share it."""
    gemmtune_whose: tuple[dict[Any, int], dict[Any, int]]
    """Without and with gradients: whose product inputs of a shape (under autocast, with the dtype it casts to) are, as
    far as they have come by."""

    def _compiled_call_impl(self, *args: Any, **kwargs: Any) -> Any:
        """A call, as torch makes it; a layer that is left to torch is to cost the host no more than nn.Linear.

        In a model every object that a call looks at is a miss of the caches, and a call of ours costs what it looks at
        (``benchmarks/layer_host.py`` times both). So this looks for little more than nn.Module must: hooks, and the
        parameters.

        The name is the one under which nn.Module keeps what ``compile()`` made of a layer, which is called before all
        else, and goes before this where there is any.
        """
        if not (
            self._backward_hooks or self._backward_pre_hooks or self._forward_hooks or self._forward_pre_hooks
            or _backward_hooks or _backward_pre_hooks or _forward_hooks or _forward_pre_hooks
            or len(args) != 1 or kwargs or type(args[0]) is not _Tensor or _dynamo() or _compiler._is_compiling_flag
        ):  # fmt: skip
            parameters = self._parameters
            try:
                found = self.gemmtune_left.get(args[0].numel())
                weight, bias = parameters["weight"], parameters["bias"]
            except (TypeError, KeyError):  # sizes that a trace leaves open; pruned, sharded, replicated
                found = weight = bias = None
            if found is not None and (
                found == TORCHS or _stream(found) == DEFAULT_STREAM or not plans.machine.captured(args[0])
            ):
                return _functional.linear(args[0], weight, bias)
        return self._call_impl(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """What a subclass does in its forward is done for every input."""
        super().__init_subclass__(**kwargs)
        if cls.forward is not Linear.forward:
            cls._compiled_call_impl = None  # type: ignore[assignment, method-assign]

    def __setattr__(self, name: str, value: Any) -> None:
        """Other parameters have other kernels; a forward of the layer's own (of hooks that offload, say) is called."""
        if name == "forward" or name in self.__dict__.get("_parameters", ()):
            forget(self)
        super().__setattr__(name, value)

    def forward(self, input: Any) -> Any:  # noqa: A002 - the name that nn.Linear has
        """``input @ weight.T + bias``."""
        if _dynamo() or _compiler._is_compiling_flag:
            return by_key(input, self.weight, self.bias, self.gemmtune_pack, True)
        parameters = self._parameters
        try:
            weight, bias = parameters["weight"], parameters["bias"]
        except KeyError:  # pruned, sharded, replicated: plain attributes
            weight, bias = self.weight, self.bias
        known = self.gemmtune_whose[_grad_enabled()]
        try:
            kind = (input.shape, casts_to(input)) if _autocast() else input.shape
            if weight.dtype is torch.float32:
                kind = kind, plans.tf32_allowed()
            found = known.get(kind) if type(input) in PLAIN else None
        except (TypeError, RuntimeError):  # sizes that a trace leaves open; none at all, of a nested tensor
            return by_key(input, weight, bias, self.gemmtune_pack, True)
        if found is None:
            found = self._ask(known, kind, input, weight, bias)
        if found is not None and found != OURS and (found == TORCHS or not plans.machine.captured(input)):
            return _functional.linear(input, weight, bias)
        return by_key(input, weight, bias, self.gemmtune_pack, True)

    def _ask(self, known: dict[Any, int], kind: Any, tensor: Any, weight: Any, bias: Any) -> int | None:
        """Whose product this is, which is kept, for all layers of a kind where it holds in any eager code."""
        key = self.gemmtune_pack
        handle = registry.handle_of(key)
        if handle is None or not eager(tensor, weight, bias):
            return None
        others = [t for t in (tensor, bias) if t is not None]
        here = all(t.device == weight.device for t in others)
        alike = here and all(t.dtype is weight.dtype for t in others)
        usual = (
            alike and tensor.is_contiguous()
            and type(self).forward is Linear.forward and not {"forward", "weight"} & set(vars(self))
        )  # fmt: skip
        layers = tuple(weight.shape), weight.stride(), weight.dtype, weight.device, bias is None
        left = handle.left.get(layers) if usual else None
        found = None if left is None else left.get(tensor.numel())
        if found is None:
            found = whose(tensor, weight, bias, key, True)
            usual = (
                usual and found is not None and everywhere(tensor, weight, bias, key, found, quiet=not self.training)
            )
        if usual:
            if left is None:
                left = _keep(handle.left, layers, {})
            self.gemmtune_left = left
            _keep(left, tensor.numel(), found)
        if found is not None and here and (alike or found != TORCHS or _autocast()):  # else torch refuses it
            _keep(known, kind, found)
        return found

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """Another device or dtype has other kernels."""
        forget(self)
        return super()._apply(*args, **kwargs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """So may the program that a copy was made for: what the original knows, it learns anew."""
        super().__setstate__(state)
        forget(self)

    def extra_repr(self) -> str:
        """As nn.Linear, and the pack."""
        return f"{super().extra_repr()}, pack={self.gemmtune_pack}"


def _keep(known: dict[Any, Any], kind: Any, found: Any) -> Any:
    if len(known) >= MAX_SHAPES:
        known.clear()
    known[kind] = found
    return found


def forget(layer: Any) -> None:
    """Let a layer learn anew whose products are."""
    layer.gemmtune_left, layer.gemmtune_whose = {}, ({}, {})
