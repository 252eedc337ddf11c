"""What the cache holds, and making room in it while others use it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemmtune.codegen import housekeeping
from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.housekeeping import ABANDONED, Entry, entries, prune
from gemmtune.codegen.render import render
from gemmtune.space.configuration import Configuration
from gemmtune.space.gemm import Gemm

SOURCE = render(Gemm(64, 64, 64), Configuration.of("naive", {}))
LOG = "ptxas info : Compiling entry function 'naive_1' for 'sm_90a'"
NOW = 1_000_000.0


def put(root: Path, name: str, used: float, size: int = 1000) -> Path:
    cache, source = KernelCache(root), replace(SOURCE, text=name)
    cache.put(source, (), "13.0", bytes(size), LOG)
    path = cache.path(cache.key(source, (), "13.0"))
    os.utime(path, (used, used))
    return path


def held(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file()}


def test_entries_tell_name_size_last_use_and_hits(tmp_path: Path) -> None:
    path = put(tmp_path, "a", NOW)
    (entry,) = entries(tmp_path)
    assert entry == Entry("kernel", "naive_1 sm_90a", (path,), path.stat().st_size, NOW, 0)
    assert KernelCache(tmp_path).get(replace(SOURCE, text="a"), (), "13.0") is not None
    (used,) = entries(tmp_path)
    assert used.hits == 1
    assert used.used > NOW  # and is the last to be pruned


def test_the_longest_unused_goes_first_and_no_more_than_need_be(tmp_path: Path) -> None:
    old, middle, new = (put(tmp_path, name, NOW + i) for i, name in enumerate("abc"))
    size = new.stat().st_size
    assert [e.paths[0] for e in prune(tmp_path, max_bytes=2 * size)] == [old]
    assert held(tmp_path) == {middle, new}
    assert prune(tmp_path, max_bytes=2 * size) == []


def test_what_was_unused_for_long_goes_whatever_the_size(tmp_path: Path) -> None:
    old, new = put(tmp_path, "a", NOW - 100), put(tmp_path, "b", NOW - 10)
    assert [e.paths[0] for e in prune(tmp_path, older_than=50, now=NOW)] == [old]
    assert held(tmp_path) == {new}


def test_a_clock_set_back_removes_nothing(tmp_path: Path) -> None:
    put(tmp_path, "a", NOW + 1e6)
    assert prune(tmp_path, older_than=50, now=NOW) == []


def test_damage_goes_first_and_always(tmp_path: Path) -> None:
    fine, damaged = put(tmp_path, "a", NOW - 5), put(tmp_path, "b", NOW)
    damaged.write_bytes(damaged.read_bytes()[:50])
    assert {e.kind for e in entries(tmp_path)} == {"kernel", "damaged"}
    assert [e.paths[0] for e in prune(tmp_path, max_bytes=10**9)] == [damaged]
    assert held(tmp_path) == {fine}


def test_what_is_being_written_is_left_alone_and_what_a_killed_process_left_is_not(tmp_path: Path) -> None:
    folder = put(tmp_path, "a", NOW).parent
    builds = tmp_path / "emulator" / "key" / "kernels" / ".build-dead"
    builds.mkdir(parents=True)
    writing, abandoned, library = folder / ".new-1", folder / ".new-2", builds / "made.so"
    for path, when in ((writing, NOW), (abandoned, NOW - ABANDONED - 1), (library, NOW - ABANDONED - 1)):
        path.write_bytes(b"half")
        os.utime(path, (when, when))
    assert len(prune(tmp_path, max_bytes=0, now=NOW)) == 1
    assert held(tmp_path) == {writing}
    assert not builds.exists()


def test_an_entry_used_or_replaced_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "a", NOW)
    before = entries(tmp_path)
    put(tmp_path, "a", NOW + 1)
    monkeypatch.setattr(housekeeping, "entries", lambda root: before)
    assert prune(tmp_path, max_bytes=0) == []
    assert path.exists()
    path.unlink()  # and one that another process pruned is none of ours
    assert prune(tmp_path, max_bytes=0) == []


def test_the_emulators_libraries_count_and_its_core_outlasts_them(tmp_path: Path) -> None:
    home = tmp_path / "emulator" / ("k" * 32)
    (home / "kernels").mkdir(parents=True)
    files = {home / "core.so": NOW - 9, home / "kernels" / "one.so": NOW - 5, home / "kernels" / "two.so": NOW}
    for path, when in files.items():
        path.write_bytes(bytes(100))
        path.with_name(f"{path.name}.sha256").write_bytes(bytes(64))
        os.utime(path, (when, when))
    assert [(e.kind, e.bytes, e.used) for e in entries(tmp_path)] == [
        ("emulated kernel", 164, NOW - 5),
        ("emulator", 164, NOW),
        ("emulated kernel", 164, NOW),
    ]
    prune(tmp_path, max_bytes=400)
    assert held(tmp_path) == {p for p in held(tmp_path) if "one" not in p.name}
    prune(tmp_path, max_bytes=0)
    assert held(tmp_path) == set()


def test_no_cache_is_an_empty_one(tmp_path: Path) -> None:
    assert entries(tmp_path / "none") == []
    assert prune(tmp_path / "none", max_bytes=0) == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(uses=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3000)), max_size=6), bound=st.integers(0, 9000))
def test_what_is_left_fits_and_was_used_later_than_what_went(
    tmp_path_factory: pytest.TempPathFactory, uses: list[tuple[int, int]], bound: int
) -> None:
    root = tmp_path_factory.mktemp("cache")
    for i, (when, size) in enumerate(uses):
        put(root, str(i), NOW + when, size)
    removed, left = prune(root, max_bytes=bound), entries(root)
    assert sum(e.bytes for e in left) <= bound
    assert max((e.used for e in removed), default=0) <= min((e.used for e in left), default=NOW * 2)
    if removed:  # the last one had to go
        assert sum(e.bytes for e in left) + removed[-1].bytes > bound
