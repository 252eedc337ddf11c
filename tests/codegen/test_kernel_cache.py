"""The cache: whole entries or none, keyed by everything a cubin is made from, and never in the way."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemmtune.codegen import cache as cache_module
from gemmtune.codegen.cache import Cached, KernelCache, default_root
from gemmtune.codegen.kernel import KernelSource
from gemmtune.codegen.render import render
from gemmtune.space.configuration import Configuration
from gemmtune.space.gemm import Gemm

SOURCE = render(Gemm(64, 64, 64), Configuration.of("naive", {}))
OPTIONS = ("--gpu-architecture=sm_90a",)
CUBIN, LOG = bytes(range(256)), "ptxas info\nUsed 40 registers – ok"


def test_what_was_put_is_found(tmp_path: Path) -> None:
    KernelCache(tmp_path).put(SOURCE, OPTIONS, "13.0", CUBIN, LOG)
    assert KernelCache(tmp_path).get(SOURCE, OPTIONS, "13.0") == Cached(CUBIN, LOG)


def test_uses_are_counted_and_do_not_harm_the_entry(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    cache.put(SOURCE, OPTIONS, "13.0", CUBIN, LOG)
    counts = [entry.uses for _ in range(3) if (entry := cache.get(SOURCE, OPTIONS, "13.0")) is not None]
    assert counts == [0, 1, 2]
    cache.put(SOURCE, OPTIONS, "13.0", CUBIN, LOG)
    again = cache.get(SOURCE, OPTIONS, "13.0")
    assert again == Cached(CUBIN, LOG)


def test_an_entry_that_cannot_be_written_is_still_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KernelCache(tmp_path).put(SOURCE, OPTIONS, "13.0", CUBIN, LOG)

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(cache_module.os, "open", refuse)
    assert KernelCache(tmp_path).get(SOURCE, OPTIONS, "13.0") == Cached(CUBIN, LOG)


def test_nothing_is_left_beside_the_entry(tmp_path: Path) -> None:
    KernelCache(tmp_path).put(SOURCE, OPTIONS, "13.0", CUBIN, LOG)
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 1


@pytest.mark.parametrize(
    ("source", "options", "nvrtc"),
    [
        (replace(SOURCE, text=SOURCE.text + " "), OPTIONS, "13.0"),
        (SOURCE, ("--gpu-architecture=sm_80",), "13.0"),
        (SOURCE, OPTIONS, "13.1"),
    ],
    ids=["source", "options", "nvrtc"],
)
def test_anything_else_is_a_miss(tmp_path: Path, source: KernelSource, options: tuple[str, ...], nvrtc: str) -> None:
    KernelCache(tmp_path).put(SOURCE, OPTIONS, "13.0", CUBIN, LOG)
    assert KernelCache(tmp_path).get(source, options, nvrtc) is None


def test_another_intrinsics_layer_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KernelCache(tmp_path).put(SOURCE, OPTIONS, "13.0", CUBIN, LOG)
    monkeypatch.setattr(cache_module, "intrinsics", lambda: "changed")
    assert KernelCache(tmp_path).get(SOURCE, OPTIONS, "13.0") is None


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 600), flip=st.integers(0, 600))
def test_a_truncated_or_altered_entry_is_a_miss_and_is_replaced(tmp_path: Path, cut: int, flip: int) -> None:
    cache = KernelCache(tmp_path)
    cache.put(SOURCE, OPTIONS, "13.0", CUBIN, LOG)
    path = cache.path(cache.key(SOURCE, OPTIONS, "13.0"))
    whole = path.read_bytes()
    altered = bytearray(whole)
    altered[flip % len(whole)] ^= 1
    damages: list[Callable[[], object]] = [
        lambda: path.write_bytes(whole[: cut % len(whole)]),
        lambda: path.write_bytes(altered),
        lambda: path.write_bytes(whole + b"x"),
    ]
    for damage in damages:
        damage()
        assert cache.get(SOURCE, OPTIONS, "13.0") is None
        cache.put(SOURCE, OPTIONS, "13.0", CUBIN, LOG)
        assert cache.get(SOURCE, OPTIONS, "13.0") == Cached(CUBIN, LOG)


def test_a_folder_that_cannot_be_written_is_said_and_survived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = KernelCache(tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        cache.put(SOURCE, OPTIONS, "13.0", CUBIN, LOG)
    assert "cannot be written" in caplog.text
    assert cache.get(SOURCE, OPTIONS, "13.0") is None


def test_a_full_disk_leaves_nothing_half_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = KernelCache(tmp_path)
    cache.put(SOURCE, OPTIONS, "12.9", CUBIN, LOG)

    def full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    with caplog.at_level(logging.WARNING):
        cache.put(SOURCE, OPTIONS, "13.0", CUBIN, LOG)
    assert "No space left on device" in caplog.text
    assert cache.get(SOURCE, OPTIONS, "13.0") is None
    assert cache.get(SOURCE, OPTIONS, "12.9") == Cached(CUBIN, LOG)
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 1


def test_the_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMTUNE_CACHE", str(tmp_path))
    assert KernelCache().root == tmp_path
    monkeypatch.delenv("GEMMTUNE_CACHE")
    assert default_root().name == "gemmtune"
