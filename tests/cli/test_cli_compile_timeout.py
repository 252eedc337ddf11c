"""``--compile-timeout``: checked before anything is compiled, and no part of what a study is found by."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmtune.cli.main import run


@pytest.mark.parametrize("text", ["soon", "0s", "-1s"])
def test_a_compile_timeout_that_is_none_is_bad_input(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tune", "64x64x64", "--device", "emulator:h200", "--db", str(tmp_path / "h.db")]
    assert run([*command, f"--compile-timeout={text}"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_no_kernel_compiles_in_no_time_and_the_study_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with the extra cuda13 or cuda12")
    monkeypatch.setenv("GEMMTUNE_CACHE", str(tmp_path / "cache"))
    database = ["--db", str(tmp_path / "h.db")]
    command = ["tune", "64x64x64", "--device", "emulator:h200", "--trials", "2", "--family", "simt", *database]
    assert run([*command, "--compile-timeout", "0.001s"]) == 1
    capsys.readouterr()
    assert run(["query", "trials", "--format", "json", *database]) == 0
    out = capsys.readouterr().out
    assert out.count('"outcome": "compile"') == 2
    assert out.count("took longer than 0.001 s and was stopped") == 2
    assert run([*command, "--trials", "3"]) == 0  # the same study, with the usual limit
    capsys.readouterr()
    assert run(["query", "studies", "--format", "json", *database]) == 0
    assert capsys.readouterr().out.count('"trials": 3') == 1
