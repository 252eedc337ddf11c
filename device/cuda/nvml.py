"""Clocks, throttle reasons and versions from NVML through ctypes; everything is None or empty where it does not answer.

Only reads: nothing here changes the card's settings. Names and constants: nvml.h.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any

_CLOCK_SM = 1
_TOO_SMALL = 7  # NVML_ERROR_INSUFFICIENT_SIZE


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t of version 3 of the call."""

    _fields_ = (
        ("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )  # fmt: skip


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

    def number(self, call: str, *arguments: int) -> int | None:
        """The one unsigned integer that NVML's function ``call`` answers of this GPU; None where it has no answer."""
        function = getattr(self._lib, call, None)  # an older driver lacks the newest
        value = ctypes.c_uint()
        if function is None or function(self._device, *arguments, ctypes.byref(value)) != 0:
            return None
        return int(value.value)

    def memory_used(self) -> int | None:
        """Bytes of GPU memory in use, by whomever."""
        if self._lib is None:
            return None
        memory = _Memory()
        return None if self._lib.nvmlDeviceGetMemoryInfo(self._device, ctypes.byref(memory)) else int(memory.used)

    def processes(self) -> frozenset[int]:
        """Process ids with a CUDA context, as far as NVML tells them (in a container it may tell none)."""
        listed = getattr(self._lib, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        if listed is None:
            return frozenset()
        room = 16
        while room <= 4096:  # the list may grow between two calls
            found, count = (_Process * room)(), ctypes.c_uint(room)
            status = listed(self._device, ctypes.byref(count), found)
            if status == 0:
                return frozenset(process.pid for process in found[: count.value])
            if status != _TOO_SMALL:
                break
            room = max(2 * room, count.value + 8)
        return frozenset()

    def throttle(self) -> str:
        """What holds the clock down now, in words, comma-separated; empty where nothing does."""
        if self._lib is None:
            return ""
        value = ctypes.c_ulonglong()
        if self._lib.nvmlDeviceGetCurrentClocksThrottleReasons(self._device, ctypes.byref(value)) != 0:
            return ""
        return ", ".join(word for bit, word in _REASONS.items() if value.value & bit)
