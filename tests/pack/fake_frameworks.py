"""Modules that answer like CuPy and torch, with arrays in host memory."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest


def aligned(shape: tuple[int, ...], dtype: Any, offset: int = 0) -> np.ndarray[Any, Any]:
    """Host memory whose address is a multiple of 256, plus ``offset`` bytes."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    raw = np.zeros(count * dtype.itemsize + 512 + offset, np.uint8)
    start = -raw.ctypes.data % 256 + offset
    return raw[start : start + count * dtype.itemsize].view(dtype).reshape(shape)


class Stand:
    """What both fakes know: the current device and stream, and how many arrays were made and copied."""

    device = 0
    stream = 7
    made = 0
    copied = 0
    misaligned = 0


def fake_cupy() -> tuple[types.ModuleType, Any, type[Stand]]:
    """A module that answers like CuPy, its array class, and its state."""
    state = type("State", (Stand,), {})
    module: Any = types.ModuleType("cupy")

    class ndarray:
        __module__ = "cupy"

        def __init__(self, host: np.ndarray[Any, Any], device: int = 0) -> None:
            self.host = host
            self.data = types.SimpleNamespace(ptr=host.ctypes.data, device_id=device)
            self.shape, self.strides, self.dtype = host.shape, host.strides, host.dtype

        def __setitem__(self, where: Any, value: Any) -> None:
            self.host[where] = value.host

    def empty(shape: tuple[int, ...], dtype: Any) -> Any:
        state.made += 1
        return ndarray(aligned(shape, dtype, state.misaligned), state.device)

    def ascontiguousarray(array: Any) -> Any:
        state.copied += 1
        out = empty(array.shape, array.dtype)
        out.host[...] = array.host
        return out

    @contextmanager
    def on(index: int) -> Iterator[None]:
        before, state.device = state.device, index
        try:
            yield
        finally:
            state.device = before

    module.ndarray, module.zeros, module.ascontiguousarray = empty, empty, ascontiguousarray
    module.cuda = types.SimpleNamespace(
        get_current_stream=lambda: types.SimpleNamespace(ptr=state.stream),
        runtime=types.SimpleNamespace(getDevice=lambda: state.device),
        Device=on,
    )
    return module, ndarray, state


def fake_torch() -> tuple[types.ModuleType, Any, type[Stand]]:
    """A module that answers like torch, its tensor class, and its state."""
    import ml_dtypes

    state = type("State", (Stand,), {"grad": True})
    module: Any = types.ModuleType("torch")
    names = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "int32": np.int32}
    dtypes = {name: type("dtype", (), {"__repr__": lambda self, name=name: f"torch.{name}"})() for name in names}
    to_numpy = {dtypes[name]: np.dtype(kind) for name, kind in names.items()}
    from_numpy = {kind: dtype for dtype, kind in to_numpy.items()}

    class Tensor:
        __module__ = "torch"
        requires_grad = False

        def __init__(self, host: np.ndarray[Any, Any], device: int = 0) -> None:
            self.host, self._device = host, device
            self.shape, self.dtype = tuple(host.shape), from_numpy[host.dtype]
            self.is_cuda = device >= 0
            self.device = f"cuda:{device}" if device >= 0 else "cpu"

        def stride(self) -> tuple[int, ...]:
            return tuple(s // self.host.itemsize for s in self.host.strides)

        def data_ptr(self) -> int:
            return int(self.host.ctypes.data)

        def get_device(self) -> int:
            return self._device

        def is_neg(self) -> bool:
            return False

        def new_empty(self, shape: tuple[int, ...], *, dtype: Any) -> Any:
            return empty(shape, dtype=dtype)

        def contiguous(self) -> Any:
            state.copied += 1
            out = empty(self.shape, dtype=self.dtype)
            out.host[...] = self.host
            return out

        def copy_(self, other: Any) -> None:
            self.host[...] = other.host

    def empty(shape: tuple[int, ...], *, dtype: Any, device: Any = None) -> Any:
        state.made += 1
        return Tensor(aligned(shape, to_numpy[dtype], state.misaligned), state.device)

    module.Tensor, module.zeros = Tensor, empty
    module.is_grad_enabled = lambda: state.grad
    for name, dtype in dtypes.items():
        setattr(module, name, dtype)
    module.cuda = types.SimpleNamespace(
        current_stream=lambda device: types.SimpleNamespace(cuda_stream=state.stream),
        current_device=lambda: state.device,
    )
    return module, Tensor, state


@dataclass
class Framework:
    """A fake framework in place: ``array(host)`` wraps host memory, ``host(array)`` unwraps it."""

    name: str
    module: Any
    array: Any
    state: Any

    def host(self, array: Any) -> np.ndarray[Any, Any]:
        return array.host  # type: ignore[no-any-return]

    def dtype(self, name: str) -> Any:
        import ml_dtypes

        long = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[name]
        if self.name == "torch":
            return getattr(self.module, long)
        return np.dtype(ml_dtypes.bfloat16) if name == "bf16" else np.dtype(long)


def install(name: str, monkeypatch: pytest.MonkeyPatch) -> Framework:
    """Puts a fake in ``sys.modules`` under the real name."""
    from gemmtune.pack import arrays

    module, array, state = fake_cupy() if name == "cupy" else fake_torch()
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(arrays, "_known", {})
    monkeypatch.setattr(arrays, "_made", {})
    return Framework(name, module, array, state)
