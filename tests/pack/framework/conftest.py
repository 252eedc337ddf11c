"""A machine for ``gemmtune.torch`` that is none: torch's CPU tensors, launched on by the fake launcher of the packs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gemmtune.pack.runtime import Pack
from gemmtune.space.gemm import Gemm

try:
    import torch
except ImportError:  # the tests of this folder skip themselves
    torch = None


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has its own packs in use."""
    if torch is None:
        return
    from gemmtune.torch import registry

    monkeypatch.setattr(registry, "_HANDLES", {})
    monkeypatch.setattr(registry, "_unknown", set())
    monkeypatch.setattr(registry, "_paths", {})
    monkeypatch.setattr(registry, "_COMPILED", {})


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, launches: Any) -> Any:
    """CPU tensors reach the fake launcher, whatever their low address bits."""
    from gemmtune.torch import plans, swapped

    machine = host_machine()
    monkeypatch.setattr(plans, "machine", machine)
    monkeypatch.setattr(swapped, "_stream", lambda device: machine.stream(device))
    monkeypatch.setattr(plans, "POINTER_BITS", 0)
    launches.low_bits = 0
    return machine


def host_machine() -> Any:
    """A machine that takes CPU tensors for those of GPU 0."""
    from gemmtune.torch import plans

    class HostMachine(plans.Machine):
        def __init__(self) -> None:
            self.stream_now, self.current_now, self.entered = 7, 0, []
            self.stream = lambda device: self.stream_now
            self.current = lambda: self.current_now
            self.capturing = False
            self.version: str | None = None

        def index(self, tensor: Any) -> int:
            return 0

        def captured(self, tensor: Any) -> bool:
            return self.capturing

        @contextlib.contextmanager
        def on(self, device: int) -> Iterator[None]:
            self.entered.append(device)
            before, self.current_now = self.current_now, device
            yield
            self.current_now = before

        def driver(self) -> str | None:
            return self.version

    return HostMachine()


@pytest.fixture
def maker(maker: Any) -> Any:
    """Of kernels that keep the GPU busy: what a call costs the host is nothing beside them."""
    maker.us = 1000.0
    return maker


@pytest.fixture
def tuned(maker: Any) -> Pack:
    """Winners for a linear layer [32, 16] at 8 rows, forward and backward, with and without bias, and a product."""
    for dtype in ("fp32", "bf16", "fp16"):
        maker.add(Gemm(8, 32, 16, dtype), 1.2)
        maker.add(Gemm(8, 32, 16, dtype, epilogue="bias"), 1.2, tag="bias")
        maker.add(Gemm(8, 16, 32, dtype, layout="nn"), 1.2, tag="dgrad")
        maker.add(Gemm(32, 16, 8, dtype, layout="tn"), 1.2, tag="wgrad")
    return Pack(maker.data(), "tuned")


@pytest.fixture
def numbers() -> Callable[..., Any]:
    """Small integers, whose products and sums are exact in every dtype here."""
    generator = torch.Generator().manual_seed(0)

    def _numbers(*shape: int, dtype: Any = torch.float32, grad: bool = False) -> Any:
        values = torch.randint(-3, 4, shape, generator=generator).to(dtype)
        return values.requires_grad_(grad)

    return _numbers


@pytest.fixture
def left_pack(maker: Any) -> Pack:
    """Kernels of 10 us that save 2 for an fp32 layer of 8 rows, forward and backward; of 200 us in fp16."""
    maker.add(Gemm(8, 32, 16, "fp32"), 1.2, us=10.0)
    maker.add(Gemm(8, 16, 32, "fp32", layout="nn"), 1.2, us=10.0, tag="dgrad")
    maker.add(Gemm(8, 16, 32, "fp16"), 1.2, us=200.0, tag="other layers")
    return Pack(maker.data(), "left")


@pytest.fixture
def made(host: Any, left_pack: Pack, numbers: Any) -> Callable[..., Any]:
    """Makes layers on the default stream, whose products are exact."""
    import gemmtune.torch as gt

    host.stream_now = 0

    def make(**terms: Any) -> Any:
        layer = torch.nn.Linear(16, 32, bias=False)
        layer.weight.data = numbers(32, 16)
        gt.optimize_(layer, left_pack, **terms)
        return layer

    return make
