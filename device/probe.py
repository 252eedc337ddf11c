"""A known kernel with a known answer: what proves a device sane before a replaced worker serves its first request.

Each thread walks a linear congruential sequence from its own input and leaves its end to its mirror image in the block,
through shared memory: integer units, shared memory, a barrier and global memory in one short kernel. The answer follows
in closed form (Knuth, "The Art of Computer Programming", volume 2, 3.2.1, equation 6), so that the host needs no loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

THREADS = 256
MULTIPLIER, INCREMENT = 1664525, 1013904223
"""Knuth, 3.3.4, table 1, line 16, and an odd increment; run-time arguments, lest a compiler folds the steps."""
ENTRY = "gemmtune_probe"
BODY = f"""
extern "C" __global__ void {ENTRY}(const unsigned int* in, unsigned int* out, unsigned int multiplier,
                                   unsigned int increment, int steps) {{
  __shared__ unsigned int ends[{THREADS}];
  const int i = blockIdx.x * {THREADS} + threadIdx.x;
  unsigned int x = in[i];
  for (int step = 0; step < steps; step++) x = multiplier * x + increment;
  ends[threadIdx.x] = x;
  __syncthreads();
  out[i] = ends[{THREADS - 1} - threadIdx.x];
}}
"""


@dataclass(frozen=True)
class Health:
    """What a probe found: ``us`` of the known kernel, where it was timed, and one sentence where something is wrong."""

    us: float | None = None
    trouble: str = ""


def question(blocks: int) -> NDArray[np.uint32]:
    """The kernel's input, [blocks * THREADS]."""
    import numpy as np

    return np.random.default_rng(0).integers(0, 2**32, blocks * THREADS, dtype=np.uint32)


def answer(values: NDArray[np.uint32], steps: int) -> NDArray[np.uint32]:
    """What the kernel must make of ``values``, bit for bit."""
    import numpy as np

    factor, summand = 1, 0  # x -> factor * x + summand, composed by squaring
    power, term = MULTIPLIER, INCREMENT
    while steps:
        if steps & 1:
            factor, summand = factor * power % 2**32, (summand * power + term) % 2**32
        power, term = power * power % 2**32, (term * power + term) % 2**32
        steps >>= 1
    ends = (values.astype(np.uint64) * np.uint64(factor) + np.uint64(summand)).astype(np.uint32)
    return ends.reshape(-1, THREADS)[:, ::-1].reshape(-1)


def difference(found: NDArray[np.uint32], expected: NDArray[np.uint32]) -> str:
    """One sentence where they differ, or nothing."""
    import numpy as np

    wrong = np.flatnonzero(found != expected)
    if not wrong.size:
        return ""
    first = int(wrong[0])
    return (
        f"A known kernel gave {wrong.size} wrong numbers of {expected.size}, the first at {first}: "
        f"{int(found[first]):#x} where {int(expected[first]):#x} is right."
    )
