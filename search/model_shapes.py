"""The GEMMs of a model, weighted by what they cost: forward, backward, for each number of tokens.

Of a linear layer D[M,N] = A[M,K] W, the gradient of A is dD W^T and that of W is A^T dD. With W stored as [N, K]
(``nn.Linear``) the three products are ``nt``, ``nn`` and ``tn``; with W stored as [K, N] (GPT-2's ``Conv1D``) they are
``nn``, ``nt`` and ``tn``. Each is a problem of its own, since a kernel serves one layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gemmtune.search.model_layers import Layer, Model
from gemmtune.search.shape_file import Weighted
from gemmtune.space.errors import ProblemError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "forward", "dgrad", "wgrad"


@dataclass
class _Found:
    count: float = 0.0
    where: dict[str, None] = field(default_factory=dict)  # ordered, each once


def layer_problems(
    layer: Layer, rows: int, dtype: str, *, forward: bool = True, backward: bool = False
) -> Iterator[tuple[str, Gemm]]:
    """The products of one layer over ``rows`` rows, each with what it is for."""
    n, k, kind = layer.n, layer.k, layer.dtype or dtype
    stored_out_in = layer.layout == "nt"
    if forward:
        yield FORWARD, Gemm(rows, n, k, dtype=kind, layout=layer.layout, epilogue="bias" if layer.bias else "identity")
    if backward:
        yield INPUT_GRADIENT, Gemm(rows, k, n, dtype=kind, layout="nn" if stored_out_in else "nt")
        m, width = (n, k) if stored_out_in else (k, n)
        yield WEIGHT_GRADIENT, Gemm(m, width, rows, dtype=kind, layout="tn")


def model_problems(
    model: Model,
    tokens: Mapping[int, float],
    gpu: Gpu,
    *,
    forward: bool = True,
    backward: bool = False,
    dtype: str = "",
    sequences: int | None = None,
) -> list[Weighted]:
    """Every GEMM of a model once, the most valuable (count x time) first.

    Args:
        model: the model.
        tokens: for each number of tokens, how many passes over so many there are (their relative weight).
        gpu: the GPU whose roofline says how long each takes.
        forward: whether the forward pass counts.
        backward: whether both gradients count.
        dtype: element type; by default the model's own.
        sequences: rows of the head, where it runs on the last token of each sequence alone; by default every token.

    Raises:
        ProblemError: no pass, no tokens, or a number out of range.
    """
    if not (forward or backward):
        raise ProblemError("Neither the forward nor the backward pass is wanted: ask for one of them.")
    if not tokens:
        raise ProblemError("No number of tokens is given: write one, e.g. 16 or 4096.")
    found: dict[Gemm, _Found] = {}
    for number, weight in tokens.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1 or not weight > 0:
            raise ProblemError(f"{number!r} tokens with weight {weight!r} cannot be: both must be positive.")
        for layer in model.layers:
            rows, calls = layer.calls(number, sequences)
            for purpose, gemm in layer_problems(layer, rows, dtype or model.dtype, forward=forward, backward=backward):
                entry = found.setdefault(gemm, _Found())
                entry.count += calls * weight
                entry.where[f"{layer.name} {purpose}"] = None
    return weighted(((gemm, f.count, tuple(f.where)) for gemm, f in found.items()), gpu)


def weighted(counted: Iterable[tuple[Gemm, float, tuple[str, ...]]], gpu: Gpu) -> list[Weighted]:
    """Problems with their counts and layers, as shares of the time that ``gpu`` needs at least, the largest first."""
    timed = [(count * floor_us(gemm, gpu), gemm, count, where) for gemm, count, where in counted]
    total = sum(time for time, *_ in timed) or 1.0
    timed.sort(key=lambda entry: -entry[0])  # stable: equals stay in the order of the layers
    return [Weighted(gemm, count, time / total, where) for time, gemm, count, where in timed]


def floor_us(gemm: Gemm, gpu: Gpu) -> float:
    """Microseconds that ``gpu`` needs at least: bytes over bandwidth, or flops over the peak of the type.

    Peak and bandwidth are the data sheet's; a type that the GPU's tensor cores lack runs at the fp32 rate.
    """
    peak = gpu.peak.get(gemm.dtype, gpu.peak.get("fp32", 1e12))
    return max(gemm.bytes / gpu.bandwidth, gemm.flops / peak) * 1e6
