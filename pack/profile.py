"""Where the host time of one ``matmul`` goes, stage by stage, in microseconds.

The figure is the quickest batch's: code without branches takes a fixed time, to which other programs and interrupts
only ever add (so the ``timeit`` module of Python's library advises). How much they added, the median tells.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

BATCHES, BATCH = 100, 20
"""Batches a stage, and calls in each; the GPU is waited for after every batch, since a full queue blocks the host."""


def profile(
    stages: Mapping[str, Callable[[], object]], whole: Callable[[], object], wait: Callable[[], object]
) -> dict[str, float]:
    """Host microseconds of each of ``stages``, of ``whole`` (``total``), and what no stage accounts for (``other``).

    Each is the quickest of :data:`BATCHES` batches, but ``median``, which is the whole call's over all of them.
    """
    out = {name: min(_batches_us(stage, wait)) for name, stage in stages.items()}
    total = _batches_us(whole, wait)
    return {**out, "total": min(total), "other": min(total) - sum(out.values()), "median": median(total)}


def _batches_us(call: Callable[[], object], wait: Callable[[], object]) -> list[float]:
    times: list[float] = []
    for _ in range(BATCHES):
        wait()
        start = time.perf_counter_ns()
        for _ in range(BATCH):
            call()
        times.append((time.perf_counter_ns() - start) / BATCH / 1e3)
    wait()
    return times
