"""Which GPU this is, as far as it must agree for kernels and numbers to be its own: the device key and the target.

Tuner and runtime both ask here. Light: CuPy is imported only when asked, and no CUDA context is made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gemmtune.device.toolchain import require_cupy
from gemmtune.space.gpu import compile_target, device_key


@dataclass(frozen=True)
class Identity:
    """One present GPU: its name, compute capability, SMs, memory in bytes and MIG profile ("" where it is whole)."""

    name: str
    capability: tuple[int, int]
    sms: int
    memory: int
    mig: str

    @property
    def key(self) -> str:
        """The device key, as :attr:`gemmtune.space.gpu.Gpu.key`."""
        return device_key(self.capability, self.name, self.sms, self.memory, self.mig)

    @property
    def arch(self) -> str:
        """The compile target, as :attr:`gemmtune.space.gpu.Gpu.arch`."""
        return compile_target(self.capability)


def identity(index: int) -> Identity:
    """What the CUDA device ``index`` is.

    Raises:
        ToolchainError: CuPy is not installed.
    """
    properties = require_cupy().cuda.runtime.getDeviceProperties(index)
    name = str(properties["name"].decode())
    mig = re.search(r"MIG (\S+)", name)
    return Identity(
        name=name,
        capability=(int(properties["major"]), int(properties["minor"])),
        sms=int(properties["multiProcessorCount"]),
        memory=int(properties["totalGlobalMem"]),
        mig=mig.group(1) if mig else "",
    )
