"""Tensor maps in memory: the 128 bytes that TMA reads, encoded by the driver for one address of a tensor."""

from __future__ import annotations

import ctypes

from gemmtune.device.driver import function, status_name
from gemmtune.space.errors import LaunchError
from gemmtune.space.tensor_map import PROMOTIONS, SWIZZLES, BoundMap

BYTES = 128
_ELEMENTS = {"f16": 6, "f32": 7, "bf16": 9, "tf32": 11}  # CUtensorMapDataType
_KEPT = 1024
"""Addresses for which a launch keeps its maps, some hundreds of bytes each: more than a model has weights of one shape
(two in each of 80 layers) together with the places where its activations come to lie."""


class EncodedMaps:
    """The maps of tensor ``name`` that differ in the address alone, the newest kept.

    Not safe to use from two threads at once.
    """

    def __init__(self, name: str, bound: BoundMap) -> None:
        self._name, self._bound = name, bound
        self._kept: dict[int, tuple[int, object]] = {}

    def at(self, address: int) -> int:
        """Where the map for a tensor at ``address`` lies, aligned to 128 bytes; good until the next call.

        Raises:
            LaunchError: the driver refused to encode it.
            ToolchainError: the driver is older than CUDA 12.
        """
        found = self._kept.get(address)
        if found is None:
            found = self._encode(address)
            if len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[address] = found
        return found[0]

    def _encode(self, address: int) -> tuple[int, object]:
        bound = self._bound
        memory = (ctypes.c_ubyte * (2 * BYTES))()
        place = ctypes.addressof(memory) + -ctypes.addressof(memory) % BYTES
        status = function("cuTensorMapEncodeTiled")(
            ctypes.c_void_p(place),
            ctypes.c_int(_ELEMENTS[bound.element]),
            ctypes.c_uint32(2),
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * 2)(*bound.extents),
            (ctypes.c_uint64 * 1)(bound.pitch),  # of all dimensions but the innermost, whose elements are packed
            (ctypes.c_uint32 * 2)(*bound.box),
            (ctypes.c_uint32 * 2)(1, 1),  # every element, none left out
            ctypes.c_int(0),  # no interleave
            ctypes.c_int(SWIZZLES.index(bound.swizzle)),  # CUtensorMapSwizzle counts them in this order
            ctypes.c_int(PROMOTIONS.index(bound.l2_promotion)),  # and CUtensorMapL2promotion in this
            ctypes.c_int(0),  # elements outside the tensor are zero
        )
        if status:
            raise LaunchError(
                f"The driver refused the tensor map of {self._name} at {address:#x}, {bound}: {status_name(status)}."
            )
        return place, memory
