"""Where the host time of a launch goes: a measured breakdown, for the benchmark of the runtime."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from gemmtune.device.launch import LoadedKernel, Scratch
from gemmtune.device.toolchain import require_cupy


def median_call_us(call: Callable[[], object], calls: int = 2000, batch: int = 20) -> float:
    """Median over batches of the host time of one call, in microseconds."""
    times = []
    for _ in range(max(1, calls // batch)):
        start = time.perf_counter_ns()
        for _ in range(batch):
            call()
        times.append((time.perf_counter_ns() - start) / batch / 1e3)
    return sorted(times)[len(times) // 2]


def launch_breakdown(
    kernel: LoadedKernel,
    env: Mapping[str, Any],
    pointers: Mapping[str, int],
    stream: int = 0,
    scratch: Scratch | None = None,
    calls: int = 2000,
) -> dict[str, float]:
    """Host microseconds of the parts of a launch, on small problems (a full queue would make the driver wait).

    ``prepare``: checks, grid and packing, paid once a shape. ``rebind``: new addresses and the launch, paid every
    call. ``launch``: the same addresses again. ``driver``: the bare cuLaunchKernel. Synchronises between parts.
    """
    runtime = require_cupy().cuda.runtime
    prepared = kernel.prepare(env, pointers)
    addresses = [pointers[name] for name in prepared.pointer_names]
    driver, packed = prepared._call, prepared._packed

    def bare() -> None:
        driver(stream, packed.address, 0)

    parts: dict[str, Callable[[], object]] = {
        "prepare": lambda: kernel.prepare(env, pointers),
        "rebind": lambda: prepared.launch_at(addresses, stream, scratch),
        "launch": lambda: prepared.launch(stream, scratch),
        "driver": bare,
    }
    out = {}
    for name, call in parts.items():
        call()
        runtime.streamSynchronize(stream)
        out[name] = median_call_us(call, calls)
        runtime.streamSynchronize(stream)
    return out
