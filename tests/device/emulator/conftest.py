"""What the emulator's tests share: building and launching the kernels of kernels/*.cu."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmtune.device.emulator.build import build_kernel
from gemmtune.device.emulator.launch import SCHEDULES, Buffer, KernelLibrary, LaunchCounters, Schedule, launch

KERNELS = Path(__file__).parent / "kernels"


@pytest.fixture(scope="session")
def unit_library() -> Path:
    """unit.cu as one library that exports each of its kernels as call_<name>."""
    text = (KERNELS / "unit.cu").read_text()
    names = re.findall(r"^KERNEL (\w+)\(", text, re.MULTILINE)
    exports = "\n".join(f"EMU_EXPORT(call_{name}, {name})" for name in names)
    return build_kernel(f"{text}\n{exports}\n", names[0])


@pytest.fixture(scope="session")
def unit(unit_library: Path) -> Callable[..., tuple[list[np.ndarray], LaunchCounters]]:
    """Launch one kernel of unit.cu: ``unit(name, arrays, threads=...)`` -> (arrays after, counters)."""

    def run(
        name: str,
        arrays: Sequence[np.ndarray] = (),
        *,
        scalars: Sequence[Any] = (),
        threads: int = 32,
        blocks: int = 1,
        shared: int = 4096,
        schedule: Schedule = SCHEDULES[0],
        read_only: bool = False,
        profile: bool = False,
        **options: Any,
    ) -> tuple[list[np.ndarray], LaunchCounters]:
        library = KernelLibrary(unit_library, f"call_{name}")
        buffers = [
            Buffer(f"array{i}", a.nbytes, at_end=schedule.at_end, writable=not read_only) for i, a in enumerate(arrays)
        ]
        try:
            for buffer, array in zip(buffers, arrays, strict=True):
                buffer.view(array.dtype)[:] = array
            counters = launch(
                library, grid=(blocks, 1, 1), block=(threads, 1, 1), buffers=buffers, dynamic_shared=shared,
                arguments=[*(ctypes.c_void_p(b.address) for b in buffers), *scalars], schedule=schedule,
                profiled=(0, 0, 0) if profile else None, **options,
            )  # fmt: skip
            return [b.view(a.dtype).copy() for b, a in zip(buffers, arrays, strict=True)], counters
        finally:
            for buffer in buffers:
                buffer.free()
            library.close()

    return run
