"""CuPy, or the sentence that says what is missing and how to get it. Imports CuPy only when called."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from gemmtune.space.errors import ToolchainError

_NO_DEVICE = 100  # cudaErrorNoDevice
_INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver: also what a missing driver gives


def require_cupy() -> Any:
    """The CuPy module.

    Raises:
        ToolchainError: it is not installed, or does not import.
    """
    try:
        import cupy
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in ("cupy", "cupy_backends"):
            raise ToolchainError(
                "CuPy is not installed, so nothing can run on a GPU: pip install 'gemmtune[cuda13]', "
                "or 'gemmtune[cuda12]' for a driver older than 580."
            ) from None
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ToolchainError(
            f"CuPy does not import ({first}): reinstall it with pip install 'gemmtune[cuda13]'."
        ) from None
    return cupy


def driver_present() -> bool:
    """Whether NVIDIA's driver library is there; cheap, and loads no CuPy."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def device_count() -> int:
    """How many GPUs there are, at least one.

    Raises:
        ToolchainError: no CuPy, no driver, a driver too old, or no GPU: each with its own sentence.
    """
    if not driver_present():
        raise ToolchainError(
            "No NVIDIA driver is installed here (libcuda.so.1 was not found): "
            "install one, or use --device emulator:h200."
        )
    runtime = require_cupy().cuda.runtime
    try:
        count = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        if error.status == _INSUFFICIENT_DRIVER:
            major, minor = divmod(int(runtime.runtimeGetVersion()) // 10, 100)
            raise ToolchainError(
                f"The NVIDIA driver is too old for CUDA {major}.{minor}: update it, "
                "or install 'gemmtune[cuda12]' in place of 'gemmtune[cuda13]'."
            ) from None
        if error.status == _NO_DEVICE:
            count = 0
        else:
            raise ToolchainError(f"The NVIDIA driver does not answer ({error}): check nvidia-smi.") from None
    if count == 0:
        raise ToolchainError(
            "The NVIDIA driver sees no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device emulator:h200."
        )
    return count
