"""``gemmtune cache``: what is listed, what is pruned, and how sizes and ages are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmtune.cli.cache import age, read_age, read_size, size
from gemmtune.cli.main import run
from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.render import render
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import SettingError
from gemmtune.space.gemm import Gemm

SOURCE = render(Gemm(64, 64, 64), Configuration.of("naive", {}))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelCache:
    monkeypatch.setenv("GEMMTUNE_CACHE", str(tmp_path))
    made = KernelCache()
    made.put(SOURCE, (), "13.0", bytes(2000), "Compiling entry function 'naive_1' for 'sm_90a'")
    made.get(SOURCE, (), "13.0")
    return made


def test_the_cache_is_listed(cache: KernelCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "list"]) == 0
    out = capsys.readouterr().out
    assert "naive_1 sm_90a" in out
    assert f"1 entry, 2.11 KB, in {cache.root}." in out
    assert run(["cache", "list", "--format", "json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["kind"], entry["hits"]) == ("kernel", 1)
    assert Path(entry["path"]).stat().st_size == entry["bytes"]


def test_the_cache_is_pruned(cache: KernelCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "prune", "--max-size", "1MB", "--older-than", "30d"]) == 0
    assert "0 entries of 0 B removed; 1 entry of 2.11 KB left" in capsys.readouterr().out
    assert run(["cache", "prune", "--max-size", "0"]) == 0
    assert "1 entry of 2.11 KB removed; 0 entries of 0 B left" in capsys.readouterr().out
    assert cache.get(SOURCE, (), "13.0") is None
    assert run(["cache", "list"]) == 0
    assert "is empty" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Nothing says what may go: give --max-size"),
        (["--max-size", "lots"], "A size is a number with B, KB, MB, GB or TB, e.g. 2GB, but is 'lots'"),
        (["--max-size", "2XB"], "but is '2XB'"),
        (["--older-than", "30"], "An age is a number with s, m, h, d or w, e.g. 30d, but is '30'"),
    ],
)
def test_a_limit_that_cannot_be_read_is_bad_input(
    cache: KernelCache, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert run(["cache", "prune", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_sizes_and_ages_are_read_and_written() -> None:
    sizes = {"2GB": 2 * 10**9, " 1.5 gib ": 3 << 29, "500m": 5 * 10**8, "4096": 4096, "7 B": 7, "1t": 10**12}
    assert {text: read_size(text) for text in sizes} == sizes
    ages = {"30d": 30 * 86400, "1.5h": 5400, "2W": 14 * 86400, "90 s": 90}
    assert {text: read_age(text) for text in ages} == ages
    with pytest.raises(SettingError):
        read_size("GB")
    assert [size(n) for n in (0, 999, 20_300, 1_250_000_000)] == ["0 B", "999 B", "20.3 KB", "1.25 GB"]
    assert [age(s) for s in (-5, 30, 600, 86400 * 3)] == ["0 s", "30 s", "10 min", "3 d"]
