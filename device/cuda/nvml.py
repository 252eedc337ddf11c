"""Clocks, throttle reasons and versions from NVML through ctypes; everything is None or empty where it does not answer.

Only reads: nothing here changes the card's settings. Names and constants: nvml.h.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any

_CLOCK_SM = 1
_REASONS = {
    0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "thermal (software)", 0x40: "thermal (hardware)", 0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
"""Bits of nvmlClocksEventReasons; idle (0x1) is no throttling."""


@lru_cache(maxsize=1)
def _library() -> Any | None:
    try:
        lib = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
        return lib if lib.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def driver_version() -> str | None:
    """The driver's version, ``"580.159.04"``."""
    lib = _library()
    if lib is None:
        return None
    text = ctypes.create_string_buffer(96)
    return text.value.decode() if lib.nvmlSystemGetDriverVersion(text, 96) == 0 else None


class Monitor:
    """Reads one GPU, found by its PCI bus id (``"0000:3B:00.0"``)."""

    def __init__(self, bus_id: str) -> None:
        self._lib = _library()
        self._device = ctypes.c_void_p()
        if self._lib is not None:
            found = self._lib.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(self._device))
            if found != 0:
                self._lib = None

    def clock_mhz(self) -> float | None:
        """SM clock now, in MHz."""
        if self._lib is None:
            return None
        value = ctypes.c_uint()
        failed = self._lib.nvmlDeviceGetClockInfo(self._device, _CLOCK_SM, ctypes.byref(value))
        return None if failed else float(value.value)

    def throttle(self) -> str:
        """What holds the clock down now, in words, comma-separated; empty where nothing does."""
        if self._lib is None:
            return ""
        value = ctypes.c_ulonglong()
        if self._lib.nvmlDeviceGetCurrentClocksThrottleReasons(self._device, ctypes.byref(value)) != 0:
            return ""
        return ", ".join(word for bit, word in _REASONS.items() if value.value & bit)
