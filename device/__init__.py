"""Where a kernel runs: CUDA GPUs, the emulator and recorded spaces behind one protocol. Importing this imports none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmtune.space.errors import ToolchainError, UnknownNameError, UnsupportedError

if TYPE_CHECKING:
    from gemmtune.device.base import Device

DEFAULT_EMULATED = "h200"
"""The GPU that stands in where there is none."""


def open_device(spec: str | None = None, *, running: bool = False) -> Device:
    """The device called ``spec``: ``cuda:N``, ``emulator:NAME`` (``cuda`` and ``emulator`` alone: the first GPU, the
    H200) or ``replay:FILE``, a recorded space. Without a name: the first GPU where one works, else the emulated H200.

    With ``running``, only a device that runs kernels will do, which a record is not.

    Raises:
        UnknownNameError: the name is none of these, or there is no such GPU.
        RecordingError: the recorded space cannot be read.
        UnsupportedError: it is of a kernel that gemmtune does not have, or a device has to run kernels.
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
    if kind == "replay" and rest:
        if running:
            raise UnsupportedError(f"{spec} is a record, which runs no kernel: name a GPU (cuda:0) or emulator:h200.")
        from gemmtune.device.replay import ReplayDevice

        return ReplayDevice(rest)
    raise UnknownNameError(f"Unknown device {spec!r}: write cuda:0 for a GPU, emulator:h200, or replay:FILE.")
