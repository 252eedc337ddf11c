"""The same kernel source on the CPU, with adversarial scheduling; its times are estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmtune.device.emulator.device import EmulatorDevice as EmulatorDevice

__all__ = ["EmulatorDevice"]


def __getattr__(name: str) -> Any:
    """``EmulatorDevice`` on first use: importing this package imports nothing by itself."""
    if name != "EmulatorDevice":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gemmtune.device.emulator.device import EmulatorDevice

    return EmulatorDevice
