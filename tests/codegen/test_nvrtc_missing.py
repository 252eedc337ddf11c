"""Without NVRTC, one sentence says what is missing and how to get it; everything else goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gemmtune.codegen import nvrtc
from gemmtune.codegen.render import render
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ToolchainError
from gemmtune.space.gemm import Gemm

CURE = r'pip install "gemmtune\[cuda13\]"'


@pytest.fixture(autouse=True)
def ask_again() -> Iterator[None]:
    nvrtc._nvrtc.cache_clear()
    yield
    nvrtc._nvrtc.cache_clear()


def bindings(version: Any) -> ModuleType:
    """``cuda.bindings`` whose NVRTC answers as ``version`` does."""
    package: Any = ModuleType("cuda.bindings")
    package.nvrtc = SimpleNamespace(nvrtcVersion=version)
    return package  # type: ignore[no-any-return]


def test_no_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(ToolchainError, match=rf"the package cuda-bindings is missing .*{CURE}"):
        nvrtc.nvrtc_version()
    source = render(Gemm(64, 64, 64), Configuration.of("naive", {}))
    with pytest.raises(ToolchainError, match=CURE):
        nvrtc.compile_kernel(source, "sm_90")


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise RuntimeError("libnvrtc.so.13 was not found: No such file /a: No such file /b")

    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings(missing))
    with pytest.raises(ToolchainError, match=rf"library cannot be loaded \(libnvrtc.so.13 was not found\): .*{CURE}"):
        nvrtc.supported_archs()


def test_a_library_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings(lambda: (7, 0, 0)))
    with pytest.raises(ToolchainError, match=rf"does not answer \(nvrtcVersion: 7\): .*{CURE}"):
        nvrtc.nvrtc_version()
