"""Runs a few kernels on a core whose fibers switch by ucontext, as on other processors than x86-64.

A process of its own: a process loads one core. Exits with 0 where every kernel did what it should.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np

from gemmtune.device.emulator import toolchain

toolchain._COMMON = (*toolchain._COMMON, "-DEMU_UCONTEXT")

from gemmtune.device.emulator.build import build_kernel  # noqa: E402
from gemmtune.device.emulator.launch import SCHEDULES, Buffer, EmulationFault, KernelLibrary, launch  # noqa: E402

EXPECTED = {"static_shared": "", "deadlock": "deadlock", "plain_overrun": "out_of_bounds", "warp_exchange": ""}


def main() -> None:
    text = (Path(__file__).parent / "kernels" / "unit.cu").read_text()
    exports = "\n".join(f"EMU_EXPORT(call_{name}, {name})" for name in EXPECTED)
    path = build_kernel(f"{text}\n{exports}\n", "static_shared")
    for name, kind in EXPECTED.items():
        library = KernelLibrary(path, f"call_{name}")
        out = Buffer("out", 4096)
        found = ""
        try:
            launch(
                library, grid=(1, 1, 1), block=(64, 1, 1), arguments=[ctypes.c_void_p(out.address)], buffers=[out],
                dynamic_shared=4096, schedule=SCHEDULES[1],
            )  # fmt: skip
        except EmulationFault as fault:
            found = fault.kind
        if found != kind:
            sys.exit(f"{name}: found {found!r} instead of {kind!r}")
        if name == "static_shared" and (out.view(np.dtype(np.float32))[:64] != 63 - np.arange(64)).any():
            sys.exit("static_shared: wrong numbers")


if __name__ == "__main__":
    main()
