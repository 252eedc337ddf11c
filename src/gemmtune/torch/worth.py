"""Whether a kernel's win is worth the call: what it saves on the GPU, against what calling it costs the host.

A call of ours is Python where torch's is C++. In a tight loop both take alike (``benchmarks/h200/torch_calls.json``);
in a model, where other code runs in between, ours took 9 microseconds longer in a forward pass, 16 to 37 in one that
torch compiled, and 50 a layer where autograd recorded it (``benchmarks/h200/model-every-winner.json``, the GPT-2, at
4096 tokens). A program that waits for the GPU does not feel it, and a CUDA graph replays without the host.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

from gemmtune.pack.dispatch import Choice
from gemmtune.pack.schema import Point
from gemmtune.space.gemm import Gemm

Way = Literal["graph", "eager", "traced", "recorded"]
"""How a product is called: captured into a CUDA graph, in eager code, in code that torch compiles, under autograd."""

HOST_US: dict[Way, float] = {"graph": 0.0, "eager": 10.0, "traced": 20.0, "recorded": 50.0}
"""Microseconds of the host that a kernel must save the GPU to be called in each way."""
BUSY_US = 100.0
"""A kernel of so many microseconds keeps the GPU busy while the host does all that stands around the call."""
FEW_ROWS = 256
"""Up to so many rows, compiled code keeps its kernels: who decodes fast replays it as a graph, which no trace shows."""
_WORDS: dict[Way, str] = {
    "graph": "in a CUDA graph", "eager": "in eager code", "traced": "in compiled code", "recorded": "under autograd"
}  # fmt: skip


def expected(choice: Choice, problem: Gemm) -> Point | None:
    """The measured point that is nearest to what is asked; None where the kernel was only estimated."""
    row = choice.row
    if choice.kernel is None or row is None or row.estimated or not row.points:
        return None
    nearest = min(row.points, key=lambda point: abs(point.axes["m"] - problem.m))
    return nearest if nearest.baseline_us is not None else None


def worth(points: Sequence[Point], rows: int, way: Way, host_us: float | None) -> bool:
    """Whether a call is, or what autograd calls for one layer.

    Args:
        points: what the pack expects of its kernels; what was only estimated has none, and is taken where asked for.
        rows: M of the product.
        way: how it is called.
        host_us: microseconds to be saved outside of CUDA graphs; None for :data:`HOST_US`.
    """
    least = needed(way, host_us)
    if not points or least <= 0 or (way == "traced" and rows <= FEW_ROWS):
        return True
    return saved(points) >= least or any(point.us >= BUSY_US for point in points)


def needed(way: Way, host_us: float | None) -> float:
    """Microseconds that a call has to save; ``host_us`` takes the place of :data:`HOST_US` outside of CUDA graphs."""
    return HOST_US[way] if host_us is None or way == "graph" else host_us


def saved(points: Sequence[Point]) -> float:
    """Microseconds that the kernels save the GPU."""
    return sum(point.baseline_us - point.us for point in points if point.baseline_us is not None)


def reason(points: Sequence[Point], way: Way, host_us: float | None) -> str:
    """Why a call is not worth it, for people."""
    what = "the kernel saves" if len(points) == 1 else f"the {len(points)} kernels of the layer save"
    least = needed(way, host_us)
    return (
        f"{what} {saved(points):.1f} us, less than the {least:g} us that calling ours {_WORDS[way]} may cost the host "
        f"(CUDA graphs take it; host_us=0 takes it everywhere)"
    )


def replays() -> bool:
    """Whether what torch compiles now will be replayed as a CUDA graph (``mode="reduce-overhead"``)."""
    triton = getattr(sys.modules.get("torch._inductor.config"), "triton", None)
    return bool(getattr(triton, "cudagraphs", False))
