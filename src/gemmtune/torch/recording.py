"""What a running model multiplies: problems with layouts, counts and time, as ``gemmtune tune --shapes`` reads them.

with gemmtune.torch.record(model) as seen:
    model(batch).sum().backward()
seen.write("model.toml")                     # most valuable first: count times time
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gemmtune.space.gemm import Gemm
from gemmtune.torch.plans import call_of, hindered

if TYPE_CHECKING:
    from gemmtune.search.shape_file import Weighted
    from gemmtune.space.gpu import Gpu

_ATEN = torch.ops.aten
_OPERANDS: dict[Any, tuple[int, int, int | None, bool]] = {
    _ATEN.mm.default: (0, 1, None, False),
    _ATEN.addmm.default: (1, 2, 0, False),
    _ATEN.linear.default: (0, 1, 2, True),
    torch.ops.gemmtune.linear.default: (0, 1, 2, True),
    torch.ops.gemmtune.matmul.default: (0, 1, 2, False),
}
"""Where A, B and the bias stand among the arguments, and whether B is stored transposed."""


class record(TorchDispatchMode):  # type: ignore[misc]  # noqa: N801 - used as a context, as torch.no_grad is
    """Records every matrix product of its block, forward and backward, however the code spells it.

    A model on the ``meta`` device is recorded at its full size without a GPU and without memory: nothing is computed,
    so nothing is timed either.

    Args:
        model: names the layers in the file; None records without names.
        timed: measure each product (GPU events; else the clock), for the share of the time. Without it every product
            counts by its operations.
    """

    def __init__(self, model: Any = None, *, timed: bool = True) -> None:
        super().__init__()
        self._timed = timed
        self._names: dict[int, str] = {}
        if model is not None:
            for name, parameter in model.named_parameters():
                self._names[_place(parameter)] = name
        self._counts: dict[Gemm, int] = defaultdict(int)
        self._host: dict[Gemm, float] = defaultdict(float)
        self._events: list[tuple[Gemm, Any, Any]] = []
        self._where: dict[Gemm, dict[str, None]] = defaultdict(dict)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, and note it where it is a product."""
        kwargs = kwargs or {}
        operands = _OPERANDS.get(func)
        problem = None if operands is None else self._problem(operands, args, kwargs)
        if operands is None or problem is None:
            return func(*args, **kwargs)
        self._counts[problem] += 1
        self._timed = self._timed and not args[operands[0]].is_meta
        if not self._timed:
            return func(*args, **kwargs)
        if any(isinstance(t, torch.Tensor) and t.is_cuda for t in args):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            out = func(*args, **kwargs)
            last.record()
            self._events.append((problem, first, last))
            return out
        begin = time.perf_counter()
        out = func(*args, **kwargs)
        self._host[problem] += time.perf_counter() - begin
        return out

    def _problem(self, operands: tuple[int, int, int | None, bool], args: Any, kwargs: Any) -> Gemm | None:
        """The problem of a product; None for what no pack multiplies."""
        left, right, added, linear = operands
        if kwargs.get("alpha", 1) != 1 or kwargs.get("beta", 1) != 1:
            return None
        a, b = args[left], args[right]
        bias = args[added] if added is not None and added < len(args) else None
        if bias is not None and bias.dim() != 1:
            return None
        if hindered(a, b, bias, 0) is not None:
            return None
        call = call_of(a, b, bias, linear, 0)
        if not isinstance(call, str) and call.copies:
            a, b = (t.contiguous() if n in call.copies else t for n, t in (("a", a), ("b", b)))
            call = call_of(a, b, bias, linear, 0)
        if isinstance(call, str) or call.problem is None:
            return None
        for tensor in (a, b):
            name = self._names.get(_place(tensor))
            if name is not None:
                self._where[call.problem][name.removesuffix(".weight")] = None
        return call.problem

    def problems(self, gpu: Gpu | None = None) -> list[Weighted]:
        """What was multiplied, the most valuable first: how often, and its part of the time of all products.

        Args:
            gpu: weigh each by the least time that this GPU needs, in place of what was measured (or, untimed, by its
                operations): ``gemmtune.space.gpu.gpu("h200")``.
        """
        from gemmtune.search.model_shapes import weighted
        from gemmtune.search.shape_file import Weighted

        if gpu is not None:
            return weighted(((p, n, tuple(self._where.get(p, ()))) for p, n in self._counts.items()), gpu)
        spent = dict(self._host)
        if self._events:
            torch.cuda.synchronize()
        for problem, first, last in self._events:
            spent[problem] = spent.get(problem, 0.0) + first.elapsed_time(last) / 1e3
        value = {p: spent.get(p, 0.0) if self._timed else float(p.flops * n) for p, n in self._counts.items()}
        total = sum(value.values()) or 1.0
        order = sorted(self._counts, key=lambda p: (-value[p], p.key))
        return [Weighted(p, self._counts[p], value[p] / total, tuple(self._where.get(p, ()))) for p in order]

    def write(self, path: str | Path, gpu: Gpu | None = None) -> None:
        """Write them as a file for ``gemmtune tune --shapes``; ``gpu`` as in :meth:`problems`.

        Raises:
            ProblemError: the file cannot be written.
        """
        from gemmtune.search.shape_file import write_problems

        title = "The matrix products of a live run, the most valuable first."
        write_problems(path, self.problems(gpu), title if gpu is None else f"{title} Weighed for the {gpu.name}.")


def _place(tensor: Any) -> int:
    """What tells tensors apart that share no memory: the address, or the storage itself where it has none (meta)."""
    return tensor.data_ptr() or int(tensor.untyped_storage()._cdata)
