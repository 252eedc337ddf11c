"""A context in which torch's own products use a pack, for code that cannot be changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gemmtune.pack.runtime import Pack
from gemmtune.torch import registry
from gemmtune.torch.functional import by_key

_LINEAR = frozenset({torch.nn.functional.linear})
_PRODUCTS = frozenset({torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__})
_FLAT = frozenset({torch.mm, torch.Tensor.mm})
_SUMS = frozenset({torch.addmm, torch.Tensor.addmm})


class route(TorchFunctionMode):  # type: ignore[misc]  # noqa: N801 - used as a context, as torch.no_grad is
    """``with gemmtune.torch.route(pack):`` F.linear, torch.matmul, torch.mm, ``@`` and torch.addmm use the pack.

    What a pack has no form for goes to torch as it is: ``out=``, batches on both sides, vectors, addmm with factors or
    a full matrix. Every call of torch inside the context costs about a microsecond more on the host, so swap layers
    with :func:`gemmtune.torch.optimize_` where you can.

    Args:
        pack: a loaded pack, the path of one, or a key of :func:`gemmtune.torch.use`.
        strict: raise where the pack cannot serve, in place of one warning for each cause.
        least_ratio: take a kernel only where it is expected to reach this ratio to the baseline at least.
        host_us: as for :func:`gemmtune.torch.use`.

    Raises:
        PackError: there is no good pack at the path.
    """

    def __init__(
        self, pack: Pack | str | Path, *, strict: bool = False, least_ratio: float = 1.0, host_us: float | None = None
    ) -> None:
        super().__init__()
        self.key = registry.use(pack, strict=strict, least_ratio=least_ratio, host_us=host_us)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Route one call."""
        kwargs = kwargs or {}
        if func in _LINEAR:
            found = _named(args, kwargs, ("input", "weight", "bias"))
            if found is not None and _fits(found[0], found[1]):
                a, weight, bias = found
                return by_key(a, weight, bias, self.key, True)
        elif func in _PRODUCTS:
            if len(args) == 2 and not kwargs and _fits(*args):
                return by_key(args[0], args[1], None, self.key, False)
        elif func in _FLAT:
            if len(args) == 2 and not kwargs and _fits(*args) and args[0].dim() == 2:
                return by_key(args[0], args[1], None, self.key, False)
        elif func in _SUMS and len(args) == 3 and not kwargs:
            bias, a, b = args
            if _fits(a, b) and a.dim() == 2 and _is_row(bias, b):
                return by_key(a, b, bias, self.key, False)
        return func(*args, **kwargs)


def _named(args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...]) -> tuple[Any, ...] | None:
    """The arguments in order, however they were passed; None where there are others."""
    given = dict(zip(names, args, strict=False)) | kwargs
    if len(args) > len(names) or not set(given) <= set(names) or len(given) < 2:
        return None
    return tuple(given.get(name) for name in names)


def _fits(a: Any, b: Any) -> bool:
    """Whether they are [..., K] and a matrix, of one dtype (torch has the words for those that do not fit)."""
    return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dim() >= 2 and b.dim() == 2


def _is_row(bias: Any, b: Any) -> bool:
    return isinstance(bias, torch.Tensor) and bias.dim() == 1 and bias.shape[0] == b.shape[1]
