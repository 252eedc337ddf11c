"""How a command ends that is not let finish: Ctrl-C, and a standard output that takes nothing."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemmtune.db import History

Cli = Callable[..., Any]
EMULATED = ["--dtype", "fp32", "--device", "emulator:h200", "--peers", "none"]
COMMAND = "import sys; from gemmtune.cli.main import main; sys.argv = ['gemmtune', *sys.argv[1:]]; main()"


@pytest.mark.parametrize(
    ("words", "where", "said"),
    [
        (["tune", "48x40x32"], "gemmtune.search.study.tune", "interrupted; what was finished is kept, and the same"),
        (["bench", "48x40x32", *EMULATED], "gemmtune.search.benchmark.benchmark", "interrupted."),
        (
            ["bench", "48x40x32", *EMULATED, "--output", "b.json"],
            "gemmtune.search.benchmark.benchmark",
            "interrupted; nothing was written to b.json.",
        ),
        (["replay", "SPACE"], "gemmtune.search.replay.replay", "interrupted."),
        (["replay", "SPACE", "--output", "r.json"], "gemmtune.search.replay.replay", "interrupted; r.json is as it"),
        (["db", "merge", "h.gz"], "gemmtune.db.History.merge", "interrupted; nothing was taken in."),
        (["devices"], "gemmtune.cli.output.show_table", "interrupted."),
        (["query", "best"], "gemmtune.db.History.best", "interrupted."),
    ],
)
def test_ctrl_c_says_what_is_true_of_the_command(
    cli: Cli, tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], where: str, said: str
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    assert cli("record", "study:1", "space.json").code == 0
    before = set(tmp_path.iterdir())
    monkeypatch.setattr(where, stopped)
    done = cli(*(word.replace("SPACE", "space.json") for word in words))
    assert done.code == 130
    assert done.err.startswith(f"error: {said}")
    assert done.err.count("\n") == 1
    assert set(tmp_path.iterdir()) == before


def test_ctrl_c_in_a_suite_says_how_its_file_is_completed(
    cli: Cli, tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmtune.search import benchmark as module

    timed = module.benchmark

    def stopped(*arguments: Any, **options: Any) -> None:
        timed(*arguments, **options)
        raise KeyboardInterrupt

    suite, path = tmp_path / "suite.toml", tmp_path / "b.json"
    suite.write_text("[small]\nshapes = [[48, 40, 32]]\n")
    monkeypatch.setattr(module, "benchmark", stopped)
    done = cli("bench", "--suite", str(suite), *EMULATED, "--output", str(path))
    assert done.code == 130
    assert f"what was timed is in {path}, and the same command with --missing times the rest." in done.err
    assert path.exists()


def _run(words: list[str], redirection: str, buffered: bool = True) -> subprocess.CompletedProcess[str]:
    line = f'exec "$0" "$@" {redirection}'
    return subprocess.run(
        ["/bin/sh", "-c", line, sys.executable, "-c", COMMAND, *words],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"},
    )  # fmt: skip


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("words", [["query", "trials"], ["--help"], ["cache", "list"]])
@pytest.mark.parametrize(
    ("redirection", "said"),
    [(">/dev/full", "cannot be written (No space left on device)"), (">&-", "Standard output is closed")],
)
def test_a_standard_output_that_takes_nothing_is_a_sentence(
    tuned: Any, words: list[str], redirection: str, said: str, buffered: bool
) -> None:
    done = _run(words, redirection, buffered)
    assert done.returncode == 1
    assert done.stderr.startswith("error: Standard output")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_more_output_than_is_held_back_is_a_sentence_too(tuned: Any) -> None:
    much = "import gemmtune.cli.output as o; o.data_text = lambda *_: 'x' * 10**6; "
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", much + COMMAND, "query", "trials", "--format", "json"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, env={**os.environ, "PYTHONUNBUFFERED": ""},
        )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in done.stderr


def test_with_both_outputs_closed_there_is_no_traceback_and_nothing_is_written_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    History(path).close()
    before = path.read_bytes()
    done = _run(["query", "best", "--db", str(path)], ">&- 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert path.read_bytes() == before


def test_an_error_in_the_program_itself_is_not_taken_for_one_of_printing(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError(5, "of something else")

    monkeypatch.setattr("gemmtune.cli.main.app", broken)
    with pytest.raises(OSError, match="of something else"):
        cli("devices")
