"""CuPy arrays and torch CUDA tensors as a pack reads them, without importing either.

An array is known by the module its class comes from, found in ``sys.modules``: whoever holds a tensor has imported
torch. :class:`Arrays` gives both frameworks one face: shape, strides in elements, dtype name, device, address, the
current stream, and new arrays of the same framework.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

from gemmtune.space.dtypes import DTYPES
from gemmtune.space.errors import ArrayError

SIZES = {name: t.bytes for name, t in DTYPES.items()}
Signature = tuple[Any, Any, Hashable, int]
"""Shape, strides (as the framework gives them), dtype and device index: what a call is planned by."""


@dataclass(frozen=True)
class View:
    """One array: shape, strides in elements (None where they are no whole elements), dtype name, device index."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    device: int


class Arrays(ABC):
    """One framework's arrays."""

    name: ClassVar[str]

    def __init__(self, module: Any) -> None:
        self._module = module
        self._dtypes: dict[Hashable, str] = {}
        """Our name of each of the framework's dtypes."""
        self._types: dict[str, Any] = {}
        """The framework's dtype of each of our names."""

    @abstractmethod
    def read(self, array: Any) -> tuple[Signature, int]:
        """The signature and the address (bytes) of an array; cheap, for every call.

        Raises:
            ArrayError: an array that no kernel may read: on the host, or one that needs a gradient.
        """

    @abstractmethod
    def address(self, array: Any) -> int:
        """The address of an array that this object made."""

    @abstractmethod
    def strides(self, signature: Signature, itemsize: int) -> tuple[int, ...] | None:
        """Strides in elements; None where one is no whole number of elements."""

    @abstractmethod
    def empty(self, like: Any, shape: tuple[int, int], dtype: str) -> Any:
        """A new row-major array on the device of ``like``."""

    @abstractmethod
    def zeros(self, like: Any, shape: tuple[int, int], dtype: str) -> Any:
        """A new row-major array of zeros on the device of ``like``."""

    @abstractmethod
    def packed(self, array: Any) -> Any:
        """A row-major copy (or the array itself where it is row-major), made on the current stream."""

    @abstractmethod
    def copy_into(self, out: Any, array: Any) -> None:
        """Write ``array`` into ``out`` of the same shape and dtype, on the current stream."""

    @abstractmethod
    def stream(self, device: int) -> int:
        """The address of the framework's current stream."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until everything on the current stream is done."""

    @abstractmethod
    def current_device(self) -> int:
        """The index of the current device."""

    @abstractmethod
    def on_device(self, device: int) -> AbstractContextManager[Any]:
        """A context in which ``device`` is current."""

    def view(self, signature: Signature, what: str) -> View:
        """What ``signature`` says, in our words; ``what`` names the array in errors.

        Raises:
            ArrayError: a dtype that cannot be multiplied.
        """
        shape, _, dtype, device = signature
        name = self._dtypes.get(dtype)
        if name is None:
            raise ArrayError(
                f"{what} has the dtype {dtype}, but a pack multiplies float32, float16 and bfloat16: convert it."
            )
        return View(tuple(int(n) for n in shape), self.strides(signature, SIZES[name]), name, device)

    def dtype_name(self, dtype: Any) -> str:
        """Our name of a dtype given by our name or the framework's.

        Raises:
            ArrayError: it is neither.
        """
        if isinstance(dtype, str) and dtype in self._types:
            return dtype
        try:
            name = self._dtypes.get(dtype) or self._dtypes.get(self._convert(dtype))
        except TypeError:
            name = None
        if name is None:
            raise ArrayError(f"Output dtype {dtype!r} cannot be written: choose one of {', '.join(self._types)}.")
        return name

    def _convert(self, dtype: Any) -> Any:
        """A dtype spelled in another way of the framework's."""
        return dtype


class CupyArrays(Arrays):
    """CuPy: strides in bytes, bf16 through ml_dtypes."""

    name = "CuPy"

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        for t in DTYPES.values():
            if t.name != "tf32":
                self._types[t.name] = t.np
                self._dtypes[t.np] = t.name
        self._empty = module.ndarray  # what cupy.empty calls, less its own microsecond
        self._stream = module.cuda.get_current_stream
        self._device = module.cuda.runtime.getDevice

    def read(self, array: Any) -> tuple[Signature, int]:
        """Signature and address of an array."""
        data = array.data
        return (array.shape, array.strides, array.dtype, data.device_id), data.ptr

    def address(self, array: Any) -> int:
        """The address of an array."""
        return array.data.ptr  # type: ignore[no-any-return]

    def strides(self, signature: Signature, itemsize: int) -> tuple[int, ...] | None:
        """Strides in elements."""
        given = signature[1]
        return None if any(s % itemsize for s in given) else tuple(s // itemsize for s in given)

    def empty(self, like: Any, shape: tuple[int, int], dtype: str) -> Any:
        """A new array."""
        return self._empty(shape, self._types[dtype])

    def zeros(self, like: Any, shape: tuple[int, int], dtype: str) -> Any:
        """A new array of zeros."""
        return self._module.zeros(shape, self._types[dtype])

    def packed(self, array: Any) -> Any:
        """A row-major copy where needed."""
        return self._module.ascontiguousarray(array)

    def copy_into(self, out: Any, array: Any) -> None:
        """Write one array into another."""
        out[...] = array

    def stream(self, device: int) -> int:
        """The current stream's address."""
        return int(self._stream().ptr)

    def wait(self) -> None:
        """Wait for the current stream."""
        self._stream().synchronize()

    def current_device(self) -> int:
        """The current device's index."""
        return self._device()  # type: ignore[no-any-return]

    def on_device(self, device: int) -> AbstractContextManager[Any]:
        """Makes a device current."""
        return self._module.cuda.Device(device)  # type: ignore[no-any-return]

    def _convert(self, dtype: Any) -> Any:
        import numpy as np

        return np.dtype(dtype)


class TorchArrays(Arrays):
    """torch CUDA tensors, outside of autograd."""

    name = "torch"

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._types = {"fp32": module.float32, "fp16": module.float16, "bf16": module.bfloat16}
        self._dtypes = {dtype: name for name, dtype in self._types.items()}
        # The public calls cost a microsecond more (a Stream object, a check of what is long set up); torch's own
        # compiled code uses these.
        core = getattr(module, "_C", None)
        raw = getattr(core, "_cuda_getCurrentRawStream", None)
        self._raw_stream = raw or (lambda device: module.cuda.current_stream(device).cuda_stream)
        self._device = getattr(core, "_cuda_getDevice", None) or module.cuda.current_device
        self._grad = module.is_grad_enabled

    def read(self, array: Any) -> tuple[Signature, int]:
        """Signature and address of an array."""
        device = array.get_device()
        if device < 0 or not array.is_cuda:
            raise ArrayError(
                f"A tensor of shape {tuple(array.shape)} is on {array.device}: move it to the GPU with .cuda()."
            )
        if array.requires_grad and self._grad():
            raise ArrayError(
                f"A tensor of shape {tuple(array.shape)} requires a gradient, which a pack does not compute: "
                f"detach it, or call under torch.no_grad()."
            )
        if array.is_neg():  # negated when read, which its memory does not show
            raise ArrayError(
                f"A tensor of shape {tuple(array.shape)} is a lazily negated view: call .resolve_neg() on it."
            )
        return (array.shape, array.stride(), array.dtype, device), array.data_ptr()

    def address(self, array: Any) -> int:
        """The address of an array."""
        return array.data_ptr()  # type: ignore[no-any-return]

    def strides(self, signature: Signature, itemsize: int) -> tuple[int, ...] | None:
        """Strides in elements."""
        return tuple(signature[1])

    def empty(self, like: Any, shape: tuple[int, int], dtype: str) -> Any:
        """A new array."""
        return like.new_empty(shape, dtype=self._types[dtype])

    def zeros(self, like: Any, shape: tuple[int, int], dtype: str) -> Any:
        """A new array of zeros."""
        return self._module.zeros(shape, dtype=self._types[dtype], device=like.device)

    def packed(self, array: Any) -> Any:
        """A row-major copy where needed."""
        return array.contiguous()

    def copy_into(self, out: Any, array: Any) -> None:
        """Write one array into another."""
        out.copy_(array)

    def stream(self, device: int) -> int:
        """The current stream's address."""
        return self._raw_stream(device)  # type: ignore[no-any-return]

    def wait(self) -> None:
        """Wait for the current stream."""
        self._module.cuda.current_stream().synchronize()

    def current_device(self) -> int:
        """The current device's index."""
        return self._device()  # type: ignore[no-any-return]

    def on_device(self, device: int) -> AbstractContextManager[Any]:
        """Makes a device current."""
        return self._module.cuda.device(device)  # type: ignore[no-any-return]


_FRAMEWORKS: dict[str, type[Arrays]] = {"cupy": CupyArrays, "torch": TorchArrays}
_known: dict[type, Arrays] = {}
_made: dict[str, Arrays] = {}


def arrays_of(array: Any) -> Arrays:
    """The framework of ``array``.

    Raises:
        ArrayError: it is neither a CuPy array nor a torch tensor.
    """
    kind = type(array)
    found = _known.get(kind)
    if found is None:
        for base in kind.__mro__:
            root = base.__module__.partition(".")[0]
            if root in _FRAMEWORKS and root in sys.modules and hasattr(array, "shape"):
                if root not in _made:
                    _made[root] = _FRAMEWORKS[root](sys.modules[root])
                found = _known[kind] = _made[root]
                break
        else:
            what = f"{kind.__module__}.{kind.__qualname__}"
            cure = (
                "move it to the GPU with cupy.asarray"
                if what == "numpy.ndarray"
                else "pass CuPy arrays or torch CUDA tensors"
            )
            raise ArrayError(f"A pack cannot multiply a {what}: {cure}.")
    return found


# ----------------------------------------------------------------------------------------------------------- layouts


def matrix_layout(shape: tuple[int, ...], strides: tuple[int, ...] | None, prefer: str) -> tuple[str, int] | None:
    """How a kernel may read a matrix where it lies: (``n``, pitch) row-major or (``t``, pitch) column-major.

    Args:
        shape: rows, columns; both at least 1.
        strides: in elements.
        prefer: the letter to take where both are true (a single row or column).

    Returns:
        The layout letter and the leading dimension in elements; None where the matrix must be copied: negative, zero
        or overlapping strides, or neither dimension contiguous.
    """
    if strides is None:
        return None
    options: dict[str, int] = {}
    for letter, (outer, inner) in (("n", (0, 1)), ("t", (1, 0))):
        length = shape[inner]
        if (length == 1 or strides[inner] == 1) and (shape[outer] == 1 or strides[outer] >= length):
            options[letter] = length if shape[outer] == 1 else strides[outer]
    if not options:
        return None
    letter = prefer if prefer in options else next(iter(options))
    return letter, options[letter]


@dataclass(frozen=True)
class Extent:
    """The bytes of a row-major matrix: ``rows`` runs of ``width`` bytes, ``pitch`` apart, from ``start``."""

    start: int
    rows: int
    width: int
    pitch: int

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.start + (self.rows - 1) * self.pitch + self.width

    def overlaps(self, other: Extent) -> bool:
        """Whether any byte is in both; where the pitches differ, whether any byte lies between both ends."""
        if self.start >= other.end or other.start >= self.end:
            return False
        if self.pitch != other.pitch or self.width > self.pitch or other.width > other.pitch:
            return True
        shift = (other.start - self.start) % self.pitch  # columns of one buffer side by side do not overlap
        return shift < self.width or shift + other.width > self.pitch


def extent(address: int, view: View) -> Extent:
    """The bytes of ``view`` at ``address``: exact for a matrix that can be read where it lies, else from end to end."""
    size = SIZES[view.dtype]
    strides = view.strides
    found = matrix_layout(view.shape, strides, "n") if len(view.shape) == 2 else None
    if found is not None:
        outer, inner = (0, 1) if found[0] == "n" else (1, 0)
        return Extent(address, view.shape[outer], view.shape[inner] * size, found[1] * size)
    if strides is None:
        return Extent(0, 1, 2**63, 2**63)
    reach = [(n - 1) * s for n, s in zip(view.shape, strides, strict=True)]
    first, last = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    width = (last - first + 1) * size
    return Extent(address + first * size, 1, width, width)
