"""What was exported once is brought back from the history, byte for byte, or it is said why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from exported import record

from gemmtune.codegen.cache import KernelCache
from gemmtune.db import History
from gemmtune.pack.export import export_pack
from gemmtune.pack.restore import restore_pack
from gemmtune.pack.storage import read_files
from gemmtune.space.errors import PackError, UnknownNameError
from gemmtune.space.gemm import Gemm


@pytest.mark.parametrize("name", ["again.kpack", "again.zip"])
def test_an_export_is_brought_back_byte_for_byte(
    history: History, cache: KernelCache, tmp_path: Path, name: str
) -> None:
    record(history, cache)
    first = export_pack(tmp_path / "p.kpack", history, cache=cache)
    record(history, cache, Gemm(64, 40, 32))
    export_pack(tmp_path / "q.kpack", history, cache=cache)
    found = restore_pack(tmp_path / name, history, first.export_id[:8])
    assert (found.name, found.manifest_sha256) == ("p.kpack", first.manifest_sha256)
    assert read_files(tmp_path / name) == read_files(tmp_path / "p.kpack")
    restore_pack(tmp_path / name, history, "latest")
    assert read_files(tmp_path / name) == read_files(tmp_path / "q.kpack")
    restore_pack(tmp_path / name, history, first.manifest_sha256[:10])
    assert read_files(tmp_path / name) == read_files(tmp_path / "p.kpack")


def test_an_export_travels_with_the_history(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache)
    first = export_pack(tmp_path / "p.kpack", history, cache=cache)
    history.export(tmp_path / "h.gz")
    with History(tmp_path / "other.db") as other:
        other.merge(tmp_path / "h.gz")
        restore_pack(tmp_path / "again.kpack", other, first.export_id)
    assert read_files(tmp_path / "again.kpack") == read_files(tmp_path / "p.kpack")


def test_what_the_history_does_not_have_is_not_brought_back(
    history: History, cache: KernelCache, tmp_path: Path
) -> None:
    with pytest.raises(UnknownNameError, match="has no export"):
        restore_pack(tmp_path / "x.kpack", history, "latest")
    history.record_export("old.kpack", "ab" * 32, [])
    with pytest.raises(PackError, match=r"old\.kpack.*cubins alone"):
        restore_pack(tmp_path / "x.kpack", history, "abab")
    with pytest.raises(UnknownNameError, match=r"no export 'zz'.*old\.kpack"):
        restore_pack(tmp_path / "x.kpack", history, "zz")
    history.record_export("new.kpack", "ac" * 32, [])
    with pytest.raises(UnknownNameError, match="2 exports begin with 'a'"):
        restore_pack(tmp_path / "x.kpack", history, "a")
