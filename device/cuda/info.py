"""What GPU this is and which versions run on it, as CUDA and NVML tell it. Creates no CUDA context."""

from __future__ import annotations

import platform
import re
from dataclasses import replace
from importlib import metadata
from typing import Any

from gemmtune.device.cuda.nvml import Monitor
from gemmtune.device.identity import identity
from gemmtune.device.toolchain import device_count, require_cupy
from gemmtune.space.errors import GemmtuneError, UnknownNameError
from gemmtune.space.gpu import TABLE, Gpu


def check_index(index: int) -> None:
    """Make sure that GPU ``index`` is there.

    Raises:
        ToolchainError: there is no GPU at all, or what is needed to use one is missing.
        UnknownNameError: there are GPUs, but none of that index.
    """
    count = device_count()
    if not 0 <= index < count:
        there = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise UnknownNameError(f"There is no GPU cuda:{index}: this machine has {there}.")


def gpu_of(index: int) -> Gpu:
    """The GPU as a row like those of the shipped table: limits from the device, peaks from the table.

    The peaks are those of the table's row of the same name; else of the row of the same (or the nearest older)
    compute capability, scaled by SMs and clock.
    """
    check_index(index)
    runtime = require_cupy().cuda.runtime
    own = identity(index)

    def attribute(which: int) -> int:
        return int(runtime.deviceGetAttribute(which, index))

    clock = attribute(runtime.cudaDevAttrClockRate) * 1e3
    bandwidth = (
        2 * attribute(runtime.cudaDevAttrMemoryClockRate) * 1e3 * attribute(runtime.cudaDevAttrGlobalMemoryBusWidth) / 8
    )
    seen = Gpu(
        name=own.name,
        short=re.sub(r"[^a-z0-9]", "", own.name.lower().replace("nvidia", "").replace("geforce", "")),
        capability=own.capability,
        sms=own.sms,
        shared_per_block=attribute(runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin),
        shared_per_sm=attribute(runtime.cudaDevAttrMaxSharedMemoryPerMultiprocessor),
        l2=attribute(runtime.cudaDevAttrL2CacheSize),
        memory=own.memory,
        bandwidth=bandwidth,
        clock=clock,
        registers_per_sm=attribute(runtime.cudaDevAttrMaxRegistersPerMultiprocessor),
        threads_per_block=attribute(runtime.cudaDevAttrMaxThreadsPerBlock),
        threads_per_sm=attribute(runtime.cudaDevAttrMaxThreadsPerMultiProcessor),
        blocks_per_sm=attribute(runtime.cudaDevAttrMaxBlocksPerMultiprocessor),
        mig=own.mig,
    )
    return with_peaks(seen)


def with_peaks(seen: Gpu) -> Gpu:
    """``seen`` with peaks (and, where the name is known, bandwidth, clock and short name) from the table."""
    for row in TABLE.values():
        if row.name == seen.name:
            return replace(seen, short=row.short, peak=row.peak, bandwidth=row.bandwidth, clock=row.clock)
    older = [row for row in TABLE.values() if row.capability <= seen.capability] or list(TABLE.values())
    like = max(older, key=lambda row: (row.capability, -abs(row.sms - seen.sms)))
    scale = seen.sms * (seen.clock or like.clock) / (like.sms * like.clock)
    peak = {name: value * scale for name, value in like.peak.items()}
    return replace(seen, peak=peak, bandwidth=seen.bandwidth or like.bandwidth, clock=seen.clock or like.clock)


def monitor(index: int) -> Monitor:
    """NVML's view of GPU ``index``."""
    return Monitor(require_cupy().cuda.runtime.deviceGetPCIBusId(index))


def environment(index: int = 0) -> dict[str, str]:
    """Versions that make numbers comparable, each where it can be had: driver, cuda (what the driver speaks and the
    runtime's), nvrtc, cublas, cupy, numpy, python.
    """
    from gemmtune.device import cublas
    from gemmtune.device.cuda import nvml

    check_index(index)
    cupy = require_cupy()
    runtime = cupy.cuda.runtime
    out = {
        "driver": nvml.driver_version() or "unknown",
        "cuda_driver": _dotted(runtime.driverGetVersion()),
        "cuda_runtime": _dotted(runtime.runtimeGetVersion()),
        "cupy": str(cupy.__version__),
        "numpy": metadata.version("numpy"),
        "python": platform.python_version(),
    }
    try:
        from gemmtune.codegen.nvrtc import nvrtc_version

        out["nvrtc"] = nvrtc_version()
    except (GemmtuneError, ImportError):
        out["nvrtc"] = "none"
    try:
        out["cublas"] = cublas.version(cublas.library())
    except GemmtuneError:
        out["cublas"] = "none"
    return out


def _dotted(version: Any) -> str:
    """CUDA's 13010 as ``"13.1"``."""
    return f"{int(version) // 1000}.{int(version) % 1000 // 10}"
