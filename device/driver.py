"""CUDA driver calls that CuPy does not offer, through :mod:`ctypes`: encoding tensor maps, dependent launches, and
allocating while a stream is captured.

Types, values and layouts are those of ``cuda.h`` (CUDA 12.0 and later; the structures have not changed since).
Nothing is loaded until a kernel needs it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from gemmtune.space.errors import ToolchainError

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_DEPENDENT = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class LaunchAttribute(ctypes.Structure):
    """``CUlaunchAttribute``: the id, padding to 8 bytes, and a value of 64 bytes, of which an int is used here."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint),
    )


@lru_cache(maxsize=1)
def library() -> Any:
    """The driver's library.

    Raises:
        ToolchainError: there is no NVIDIA driver.
    """
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError:
        raise ToolchainError(f"No NVIDIA driver is installed here ({name} was not found): install one.") from None


def function(name: str) -> Any:
    """The driver's function ``name``, which returns a status (0: success).

    Raises:
        ToolchainError: there is no driver, or it is older than CUDA 12.
    """
    try:
        return getattr(library(), name)
    except AttributeError:
        raise ToolchainError(f"The NVIDIA driver has no {name}: update it to one for CUDA 12 or later.") from None


def status_name(status: int) -> str:
    """``"CUDA_ERROR_INVALID_VALUE"`` and its like for a status that is not 0."""
    text = ctypes.c_char_p()
    if function("cuGetErrorName")(ctypes.c_int(status), ctypes.byref(text)) == 0 and text.value:
        return text.value.decode()
    return f"CUDA error {status}"


@contextlib.contextmanager
def relaxed_capture() -> Iterator[None]:
    """Let this thread allocate and load in the block though a stream is being captured into a graph.

    A capture in the usual mode refuses such calls, since they may wait for the device; these here touch nothing that
    is captured (CUDA driver API, ``cuThreadExchangeStreamCaptureMode``). Does nothing where there is no driver.
    """
    try:
        exchange = function("cuThreadExchangeStreamCaptureMode")
    except ToolchainError:
        yield
        return
    mode = ctypes.c_int(_RELAXED)
    exchanged = exchange(ctypes.byref(mode)) == 0  # the mode until now is in ``mode``, then
    try:
        yield
    finally:
        if exchanged:
            exchange(ctypes.byref(mode))


class DependentCall:
    """A launch that may start before the kernels ahead of it in its stream have ended (``cuLaunchKernelEx``).

    Bound to all but stream and arguments. Not safe to call from two threads at once.

    Args:
        kernel: the function's handle.
        grid: blocks.
        block: threads.
        shared: bytes of dynamic shared memory.

    Raises:
        ToolchainError: the driver is older than CUDA 12.
    """

    def __init__(self, kernel: int, grid: tuple[int, int, int], block: tuple[int, int, int], shared: int) -> None:
        self._launch = function("cuLaunchKernelEx")
        self._kernel = ctypes.c_void_p(kernel)
        self._attribute = LaunchAttribute(id=_DEPENDENT, value=1)
        self._config = LaunchConfig(
            grid=grid, block=block, shared=shared, attributes=ctypes.pointer(self._attribute), count=1
        )

    def __call__(self, stream: int, arguments: int, extra: int) -> None:
        """Launch on ``stream`` with the array of the arguments' addresses at ``arguments``; ``extra`` must be 0.

        Raises:
            RuntimeError: the driver refused.
        """
        self._config.stream = stream
        status = self._launch(
            ctypes.byref(self._config), self._kernel, ctypes.c_void_p(arguments), ctypes.c_void_p(extra)
        )
        if status:
            raise RuntimeError(status_name(status))
