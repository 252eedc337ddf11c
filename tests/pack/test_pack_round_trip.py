"""What is written is what is read; equal data, equal bytes; nothing is ever half-written or lost."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.pack import storage
from gemmtune.pack.format import is_pack, pack_files, read_pack, unpack, write_pack
from gemmtune.pack.jsontext import decode, encode
from gemmtune.pack.schema import Point, Row, Table, dispatch_from_json, dispatch_to_json
from gemmtune.space.errors import PackError
from gemmtune.space.gemm import LAYOUTS, OUTPUTS, Gemm

sizes = st.integers(1, 10_000)
times = st.floats(0.01, 1e7, allow_nan=False)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    from gemmtune.pack.schema import BASELINE, row_of

    problem = Gemm(
        draw(sizes), draw(sizes), draw(sizes), draw(st.sampled_from(["fp32", "tf32", "fp16", "bf16"])),
        draw(st.sampled_from(OUTPUTS)), draw(st.sampled_from(LAYOUTS)),
        draw(st.sampled_from(["identity", "bias", "alpha_beta"])),
    )  # fmt: skip
    us, ratio = draw(times), draw(times)
    point = Point(dict(problem.axes), us, us, us * 2, us * ratio, ratio, ratio, ratio)
    return row_of(problem, kernel=BASELINE, alignment={"a": 16}, points=draw(st.sampled_from([(), (point,)])))


@settings(max_examples=100, deadline=None)
@given(found=st.lists(rows(), max_size=4), text=st.text(max_size=30))
def test_dispatch_tables_round_trip(found: list[Row], text: str) -> None:
    tables = (Table("key", text, "sm_90a", "burst", "warm", {text: text}, tuple(found)),)
    raw = encode(dispatch_to_json(tables))
    again = dispatch_from_json(decode(raw, "dispatch.json"))
    assert again == tables
    assert encode(dispatch_to_json(again)) == raw


def test_a_row_knows_its_problem() -> None:
    from gemmtune.pack.schema import BASELINE, row_of

    problem = Gemm(4, 6, 8, "fp16", "fp32", "tn", "bias", lda=32, ldd=10)
    assert row_of(problem, kernel=BASELINE, points=()).problem() == problem


def test_pack_round_trips_as_folder_and_zip(write: Callable[..., Path], small_pack: Any) -> None:
    for name in ("p.kpack", "p.zip"):
        again = read_pack(write(small_pack, name))
        assert replace(again, manifest_sha256="") == small_pack
        assert len(again.manifest_sha256) == 64


def test_equal_data_gives_equal_bytes(
    write: Callable[..., Path], small_pack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(small_pack, "a.zip").read_bytes()
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    shuffled = replace(small_pack, kernels=dict(reversed(small_pack.kernels.items())))
    assert write(shuffled, "b.zip").read_bytes() == first
    assert pack_files(unpack(pack_files(small_pack))) == pack_files(small_pack)


def test_an_older_pack_is_replaced(write: Callable[..., Path], small_pack: Any, maker: Any) -> None:
    maker.add(Gemm(8, 8, 8, "fp32"))
    for name in ("p.kpack", "p.zip"):
        path = write(small_pack, name)
        write(maker.data(), name)
        assert set(read_pack(path).kernels) == set(maker.kernels)
        assert [p.name for p in path.parent.iterdir() if p.name.startswith(".")] == []


def test_a_pack_of_a_newer_schema_may_be_replaced_too(write: Callable[..., Path], small_pack: Any) -> None:
    path = write(small_pack)
    (path / "manifest.json").write_bytes(b'{"format": "gemmtune-pack", "schema": 99}')
    assert is_pack(path)
    assert write(small_pack) == path


@pytest.mark.parametrize("as_zip", [False, True])
def test_what_is_no_pack_is_never_overwritten(as_zip: bool, small_pack: Any, tmp_path: Path) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    file = tmp_path / "thesis.zip"
    file.write_text("years of work")
    for path in (folder, file):
        with pytest.raises(PackError, match="not a pack"):
            write_pack(path, small_pack, as_zip=as_zip)
    assert (folder / "thesis.txt").read_text() == file.read_text() == "years of work"


def test_a_pack_with_a_file_of_the_users_own_in_it_is_not_overwritten(
    write: Callable[..., Path], small_pack: Any
) -> None:
    path = write(small_pack)
    (path / "notes.txt").write_text("mine")
    with pytest.raises(PackError, match="not a pack"):
        write(small_pack)
    assert (path / "notes.txt").read_text() == "mine"


def test_a_folder_is_not_replaced_by_a_zip(write: Callable[..., Path], small_pack: Any) -> None:
    path = write(small_pack)
    with pytest.raises(PackError, match="not a pack"):
        write_pack(path, small_pack, as_zip=True)
    assert read_pack(path)


def test_no_parent_folder(small_pack: Any, tmp_path: Path) -> None:
    with pytest.raises(PackError, match="create it first"):
        write_pack(tmp_path / "no" / "p.kpack", small_pack)


@pytest.mark.parametrize("name", ["p.kpack", "p.zip"])
def test_a_failing_disk_leaves_the_old_pack(
    name: str, write: Callable[..., Path], small_pack: Any, maker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(small_pack, name)
    before = read_files_of(path)
    maker.add(Gemm(8, 8, 8, "fp32"))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(PackError, match=r"The disk of .* is full: free some space and export again"):
        write(maker.data(), name)
    assert read_files_of(path) == before
    assert [p.name for p in path.parent.iterdir()] == [name]


def test_a_failing_rename_puts_the_old_pack_back(
    write: Callable[..., Path], small_pack: Any, maker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(small_pack)
    before = read_files_of(path)
    maker.add(Gemm(8, 8, 8, "fp32"))
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(5, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(PackError, match="Input/output error"):
        write(maker.data())
    assert read_files_of(path) == before


def test_inconsistent_data_is_not_written(small_pack: Any, tmp_path: Path) -> None:
    broken = replace(small_pack, kernels={}, cubins={}, sources={})
    with pytest.raises(PackError, match="does not have"):
        write_pack(tmp_path / "p.kpack", broken)
    assert not (tmp_path / "p.kpack").exists()


def read_files_of(path: Path) -> dict[str, bytes]:
    return storage.read_files(path)
