"""Linear layers of a model that use a pack: swapped in place and back, with a report for every layer.

A layer is swapped by giving it another class. Its parameters, buffers, hooks, name and ``state_dict`` keys stay what
they are, and so does whatever else refers to it: optimizers, tied weights, distributed wrappers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gemmtune.pack.runtime import Pack
from gemmtune.pack.schema import BASELINE, Row
from gemmtune.space.errors import SettingError
from gemmtune.torch import registry
from gemmtune.torch.plans import DTYPES
from gemmtune.torch.swapped import Linear, forget
from gemmtune.torch.worth import Way, needed, worth


@dataclass(frozen=True)
class LayerReport:
    """One linear layer: its name, [N, K], dtype, whether it was swapped, and what it does or why it was not.

    ``rows`` are the pack's rows for it, forward and backward: ``"forward m=16-64: 1.12 x"``, each with whether it
    serves in eager code or what that asks for. ``serves`` says whether any of them has a kernel that may.
    """

    name: str
    shape: tuple[int, int]
    dtype: str
    swapped: bool
    why: str
    rows: tuple[str, ...] = ()
    serves: bool = False

    def __str__(self) -> str:
        head = f"{self.name or '(the model)'} [{self.shape[0]}, {self.shape[1]}] {self.dtype}: {self.why}"
        return "\n".join([head, *(f"    {row}" for row in self.rows)])


@dataclass(frozen=True)
class Report:
    """What :func:`optimize_` did to each linear layer."""

    layers: tuple[LayerReport, ...]

    @property
    def swapped(self) -> int:
        """How many layers were swapped, be there a kernel for them or not."""
        return sum(layer.swapped for layer in self.layers)

    @property
    def found(self) -> int:
        """How many of these the pack has rows for."""
        return sum(bool(layer.rows) for layer in self.layers)

    @property
    def served(self) -> int:
        """How many of these have a kernel that may serve; the rows of the others leave all to torch."""
        return sum(layer.serves for layer in self.layers)

    def __str__(self) -> str:
        head = f"{self.found} of {len(self.layers)} linear layers use the pack"
        if lost := self.found - self.served:
            head += f", whose rows leave {lost} of them to torch"
        if idle := self.swapped - self.found:
            head += f"; it has no row for {idle} more that {'was' if idle == 1 else 'were'} swapped"
        return "\n".join([head, *(str(layer) for layer in self.layers)])


def optimize_(
    model: Any,
    pack: Pack | str | Path,
    filter_fn: Callable[[str, Any], bool] | None = None,
    *,
    strict: bool = False,
    least_ratio: float = 1.0,
    host_us: float | None = None,
) -> Report:
    """Let the ``nn.Linear`` layers of a model use a pack, in place.

    Args:
        model: any module; a linear layer itself is swapped too.
        pack: a loaded pack, the path of one, or a key of :func:`gemmtune.torch.use`.
        filter_fn: is given a layer's name and the layer, and says whether it may be swapped.
        strict: raise in the forward pass where the pack cannot serve (CPU, another GPU), in place of one warning.
        least_ratio: take a kernel only where it is expected to reach this ratio to the baseline at least.
        host_us: outside of CUDA graphs, take a kernel only where it saves so many microseconds at least, or is long;
            by default what the call may cost the host, 0 for every kernel that wins (:func:`gemmtune.torch.use`).

    Returns:
        For every linear layer what it does, and why not.

    Raises:
        PackError: there is no good pack at the path.
        SettingError: the model is no module, the pack none of these, ``filter_fn`` no function, or a number no number.
    """
    _check_module(model)
    if filter_fn is not None and not callable(filter_fn):
        raise SettingError(f"filter_fn is {filter_fn!r}, but must be a function of a layer's name and the layer.")
    key = registry.use(pack, strict=strict, least_ratio=least_ratio, host_us=host_us)
    handle = registry.handle_of(key)
    layers: list[LayerReport] = []
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or handle is None:
            continue
        why = _hindrance(name, module, filter_fn)
        rows: tuple[str, ...] = ()
        serves = False
        if why is None:
            module.__class__ = Linear
            module.gemmtune_pack = key
            forget(module)
            found = _rows(handle, module)
            rows, serves = tuple(text for text, _ in found), any(taken for _, taken in found)
            why = "uses the pack" if serves else "uses the pack, whose rows leave it to torch"
            if not rows:
                why = "swapped, but the pack has no row for it: torch multiplies"
        dtype = str(module.weight.dtype).removeprefix("torch.")
        layers.append(LayerReport(name, tuple(module.weight.shape), dtype, type(module) is Linear, why, rows, serves))
    return Report(tuple(layers))


def restore_(model: Any) -> int:
    """Undo :func:`optimize_`: every swapped layer is an ``nn.Linear`` again; returns how many were.

    Raises:
        SettingError: the model is no module.
    """
    _check_module(model)
    count = 0
    for module in model.modules():
        if type(module) is Linear:
            module.__class__ = torch.nn.Linear
            del module.gemmtune_pack, module.gemmtune_left, module.gemmtune_whose
            count += 1
    return count


def _hindrance(name: str, module: Any, filter_fn: Callable[[str, Any], bool] | None) -> str | None:
    """Why a linear layer is left as it is; None where it may be swapped."""
    if type(module) not in (torch.nn.Linear, Linear):
        return f"left as it is: it is a {type(module).__name__}, which may compute something else"
    if module.weight.dtype not in DTYPES:
        return "left as it is: packs have float32, float16 and bfloat16"
    if "forward" in module.__dict__:
        return "left as it is: its forward was replaced on the object"
    if filter_fn is not None and not filter_fn(name, module):
        return "left as it is: filter_fn says so"
    return None


def _check_module(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise SettingError(f"The model is {model!r}, but must be a torch.nn.Module.")


def _rows(handle: registry.Handle, module: Any) -> list[tuple[str, bool]]:
    """The pack's rows for a layer, forward and backward, for people, each with whether its kernel may serve."""
    (n, k), dtype = module.weight.shape, DTYPES[module.weight.dtype]
    epilogue = "identity" if module.bias is None else "bias"
    wanted = (
        ("forward", "m", {"n": n, "k": k}, "nt", epilogue),
        ("dgrad", "m", {"n": k, "k": n}, "nn", "identity"),
        ("wgrad", "k", {"m": n, "n": k}, "tn", "identity"),
    )
    dtypes = {dtype, "tf32"} if dtype == "fp32" else {dtype}
    found = []
    for what, tokens, sizes, layout, epi in wanted:
        for table in handle.pack.tables:
            for row in table.rows:
                fits = row.kind == "gemm" and row.layout == layout and row.epilogue == epi
                if fits and row.dtypes.get("a") in dtypes and all(_in(row, a, size) for a, size in sizes.items()):
                    who, taken = _served(handle, row)
                    text = f"{what} {tokens}={_span(row, tokens)}: {who}, {table.name}, {table.regime}"
                    found.append((f"{text}; {_where(handle, row, what)}" if taken else text, taken))
    return found


def _in(row: Row, axis: str, size: int) -> bool:
    low, high = row.axes[axis]
    return low <= size <= high


def _span(row: Row, axis: str) -> str:
    low, high = row.axes[axis]
    return str(low) if low == high else f"{low}-{high}"


def _served(handle: registry.Handle, row: Row) -> tuple[str, bool]:
    """Who multiplies where a row is found, and whether that may be the kernel."""
    if row.kernel == BASELINE:
        return "torch, since the best kernel tried was slower", False
    name = f"kernel {row.kernel[:12]}"
    ratio = "estimated" if row.ratio is None else f"{row.ratio:.3f} x the baseline"
    if row.ratio is not None and row.ratio < handle.least_ratio:
        return f"torch, since {name} reaches {ratio}, less than {handle.least_ratio:g}", False
    return f"{name} ({ratio})", True


def _where(handle: registry.Handle, row: Row, what: str) -> str:
    """Whether a kernel serves in eager code too, as far as its row alone can say (:func:`worth`)."""
    way: Way = "eager" if what == "forward" else "recorded"
    points = [] if row.estimated else [point for point in row.points if point.baseline_us is not None]
    kept = [worth((point,), 0, way, handle.host_us) for point in points]
    least = f"{needed(way, handle.host_us):g} us"
    if all(kept):
        eager = "in eager code too"
    elif way == "recorded":
        eager = f"in eager code only where the layer's products save {least} together"
    elif any(kept):
        eager = f"in eager code only where it saves {least}"
    else:
        eager = f"not in eager code, where it would have to save {least}"
    return f"in CUDA graphs, {eager}"
