"""Tensor maps for emulated kernels: the same 128 bytes by value as on a GPU, with the emulator's own words in them.

They mirror ``TensorView`` of ``native/runtime.h``.
"""

from __future__ import annotations

import ctypes
from typing import Any

from gemmtune.space.errors import LaunchError
from gemmtune.space.tensor_map import ALIGNMENT, ELEMENT_BYTES, BoundMap

MAGIC = 0x70616D20726F736E
BYTES = 128
_ALIGN = 64


class _View(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("base", ctypes.c_uint64),
        ("extents", ctypes.c_uint64 * 2),
        ("pitch", ctypes.c_uint64),
        ("box", ctypes.c_uint32 * 2),
        ("element_bytes", ctypes.c_uint32),
        ("swizzle", ctypes.c_uint32),
        ("element", ctypes.c_uint32),
        ("unused", ctypes.c_uint32 * 17),
    )


def encode(bound: BoundMap, address: int) -> Any:
    """A map of the tensor at ``address`` as a ctypes value, 64-byte aligned, to be passed to ``launch``.

    Raises:
        LaunchError: an address that is not a multiple of 16, which no GPU takes either.
    """
    if address % ALIGNMENT:
        raise LaunchError(f"A tensor map needs an address that is a multiple of {ALIGNMENT} bytes.")
    room = (ctypes.c_uint8 * (BYTES + _ALIGN))()
    view = _View.from_buffer(room, -ctypes.addressof(room) % _ALIGN)  # keeps `room` alive
    view.magic, view.base = MAGIC, address
    view.extents[:], view.pitch, view.box[:] = bound.extents, bound.pitch, bound.box
    view.element_bytes, view.swizzle = ELEMENT_BYTES[bound.element], bound.swizzle
    view.element = int(bound.element == "tf32")
    return view
