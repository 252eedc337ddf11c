"""Where the host time of one ``matmul`` goes, stage by stage, in microseconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

BATCHES, BATCH = 30, 100
"""Batches a stage, and calls in each.

The GPU is waited for after every batch, since a full queue blocks the host; and a batch is long, since the first calls
after a wait find cold caches, as those of a busy program do not.
"""


def profile(
    stages: Mapping[str, Callable[[], object]], whole: Callable[[], object], wait: Callable[[], object]
) -> dict[str, float]:
    """Median host microseconds of each of ``stages``, of ``whole`` (``total``), and what no stage accounts for."""
    out = {name: _call_us(stage, wait) for name, stage in {**stages, "total": whole}.items()}
    out["other"] = out["total"] - sum(out[name] for name in stages)
    return out


def _call_us(call: Callable[[], object], wait: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(BATCHES):
        wait()
        start = time.perf_counter_ns()
        for _ in range(BATCH):
            call()
        times.append((time.perf_counter_ns() - start) / BATCH / 1e3)
    wait()
    return median(times)
