"""The code blocks of "Tune your model" and "What the numbers mean" do what the pages say, in their order."""

from __future__ import annotations

import doctest
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gemmtune.search.shape_file import read_problems

ROOT = Path(__file__).resolve().parents[2]
Cli = Callable[..., Any]


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """(info string, text) of each fenced block."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    yield from re.findall(r"^```(\w[\w ]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_line(cli: Cli, line: str) -> str:
    """One command of a page; a search is cut to what shows that it works."""
    words = shlex.split(line)
    assert words[0] == "gemmtune", line
    small = ["--workers", "1", "--family", "simt"] if words[1] == "tune" else []
    done = cli(*words[1:], *small)
    assert done.code == 0, f"{line}: {done.err}"
    return str(done.out)


def test_a_model_is_tuned_as_the_page_says(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GEMMTUNE_DB", str(tmp_path / "history.db"))
    said: dict[str, str] = {}
    for kind, text in blocks("tune-your-model.md"):
        if kind == "json":
            (tmp_path / "my-model").mkdir()
            (tmp_path / "my-model" / "config.json").write_text(json.dumps(json.loads(text)))
        elif kind == "toml":
            (tmp_path / "own.toml").write_text(text)
            assert read_problems(tmp_path / "own.toml")
        elif kind == "python":
            exec(compile(text, "tune-your-model.md", "exec"), {})
        elif kind == "bash":
            said |= {line: run_line(cli, line) for line in text.splitlines()}
    assert "same" in said["gemmtune diff my-model.kpack newer.kpack"]
    assert (tmp_path / "again.kpack" / "manifest.json").read_bytes() == (
        tmp_path / "newer.kpack" / "manifest.json"
    ).read_bytes()
    assert "8x64x128" in said["gemmtune shapes my-model --tokens 8 --fused --output my-model.toml"]


def test_the_numbers_are_those_of_the_page(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = "".join(block for kind, block in blocks("numbers.md") if kind == "python")
    test = doctest.DocTestParser().get_doctest(text, {}, "numbers.md", None, 0)
    assert len(test.examples) >= 6
    told: list[str] = []
    doctest.DocTestRunner().run(test, out=told.append)
    assert not told, "".join(told)
    for kind, block in blocks("numbers.md"):
        if kind == "bash":
            for line in block.splitlines():
                run_line(cli, line)


@pytest.mark.parametrize("page", ["tune-your-model.md", "numbers.md"])
def test_every_command_named_in_the_text_has_its_options(cli: Cli, page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    lines = [line for kind, block in blocks(page) if kind == "bash gpu" for line in block.splitlines()]
    lines += re.findall(r"`(gemmtune [^`\n]*)`", text)
    for line in lines:
        words = shlex.split(line)[1:]
        command = words[:2] if words[0] in ("query", "db", "pack") else words[:1]
        told = cli(*command, "--help")
        assert told.code == 0, line
        for option in (w for w in words if w.startswith("--")):
            assert re.search(rf"{re.escape(option)}\b", told.out), f"{line}: {option}"


@pytest.mark.parametrize("page", ["tune-your-model.md", "numbers.md"])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#:]+)(?:#([\w-]+))?\)", text):
        other = ROOT / "docs" / target
        assert other.exists(), target
        if anchor:
            assert anchor in [h.lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", other.read_text(), re.M)]
