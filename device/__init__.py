"""Where a kernel runs: CUDA GPUs and the emulator behind one protocol. Importing this imports neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmtune.space.errors import ToolchainError, UnknownNameError

if TYPE_CHECKING:
    from gemmtune.device.base import Device

DEFAULT_EMULATED = "h200"
"""The GPU that stands in where there is none."""


def open_device(spec: str | None = None) -> Device:
    """The device called ``spec``: ``cuda:N`` or ``emulator:NAME`` (``cuda`` and ``emulator`` alone: the first GPU, the
    H200). Without a name: the first GPU where one works, else the emulated H200.

    Raises:
        UnknownNameError: the name is neither, or there is no such GPU.
        ToolchainError: the GPU was asked for, but CuPy, the driver or the GPU is missing; the message names the cure.
    """
    if spec is None:
        try:
            return open_device("cuda:0")
        except ToolchainError:
            return open_device(f"emulator:{DEFAULT_EMULATED}")
    kind, _, rest = spec.partition(":")
    if kind == "cuda" and (rest or "0").isdigit():
        from gemmtune.device.cuda import CudaDevice

        return CudaDevice(int(rest or "0"))
    if kind == "emulator":
        from gemmtune.device.emulator import EmulatorDevice

        return EmulatorDevice(rest or DEFAULT_EMULATED)
    raise UnknownNameError(f"Unknown device {spec!r}: write cuda:0 for a GPU, or emulator:h200.")
