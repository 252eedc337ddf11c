"""``gemmtune bench``: what its result files may take the place of, and what is printed of them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gemmtune.search.benchmark
from gemmtune.search.results import read_result_file

Cli = Callable[..., Any]
EMULATED = ["--dtype", "fp32", "--device", "emulator:h200", "--peers", "none"]
BENCH = ["bench", "48x40x32", *EMULATED]
KILLS = Path(__file__).parents[2] / "benchmarks" / "h200" / "kills.json"


def _of_another_kind(path: Path) -> None:
    shutil.copyfile(KILLS, path)


def _no_result_file(path: Path) -> None:
    path.write_text('{"my": "notes"}\n')


def _no_json(path: Path) -> None:
    path.write_bytes(b"\x89PNG\xff")


def _nested(path: Path) -> None:
    path.write_text("[" * 100_000)


def _changed(**changes: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def _measured(path: Path) -> None:
    data = json.loads(path.read_text())
    _changed(summary={**data["summary"], "estimated": False})(path)


@pytest.mark.parametrize("joins", [[], ["--missing"]], ids=["a shape", "missing"])
@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (_of_another_kind, "(kills) holds no table of times"),
        (_no_result_file, "is no result file"),
        (_no_json, "is no result file"),
        (_nested, "is no result file"),
        (_changed(gpu="NVIDIA H100"), "is of NVIDIA H100"),
        (_changed(driver="580.1"), "driver 580.1"),
        (_measured, "measurements, but this is"),
    ],
)
def test_a_file_that_is_no_table_of_the_same_origin_is_refused_before_anything_is_timed(
    cli: Cli, tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None],
    complaint: str, joins: list[str],
) -> None:  # fmt: skip
    path = tmp_path / "b.json"
    assert cli(*BENCH, "--output", str(path)).code == 0
    make(path)
    before = path.read_bytes()

    def timed(*_: Any, **__: Any) -> None:
        raise AssertionError("something was timed")

    monkeypatch.setattr(gemmtune.search.benchmark, "benchmark", timed)
    done = cli(*BENCH, *joins, "--output", str(path))
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert complaint in done.err
    assert "to another file" in done.err
    assert path.read_bytes() == before


def test_a_table_of_the_same_origin_and_an_empty_file_are_replaced(cli: Cli, tuned: Any, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.touch()
    for _ in range(2):
        assert cli(*BENCH, "--output", str(path)).code == 0
        assert len(read_result_file(path).rows) == 1


def test_a_result_file_goes_through_a_link_and_into_a_device(cli: Cli, tuned: Any, tmp_path: Path) -> None:
    path, null = tmp_path / "link.json", tmp_path / "null"
    path.symlink_to(tmp_path / "b.json")
    null.symlink_to("/dev/null")
    for target in (path, path, null):
        assert cli(*BENCH, "--output", str(target)).code == 0
        assert target.is_symlink()
    assert read_result_file(tmp_path / "b.json").rows
    assert Path("/dev/null").is_char_device()


def test_a_file_without_a_table_is_named_and_no_command_that_overwrites_it(cli: Cli) -> None:
    done = cli("bench", "--summary", str(KILLS))
    assert done.code == 2
    assert "(kills) holds no table of times" in done.err
    assert f"--output {KILLS}" not in done.err


@pytest.mark.parametrize(
    "others", [["64x64x64"], ["--m", "8"], ["--suite", "s.toml"], ["--output", "b.json"], ["--missing"]]
)
def test_a_summary_with_anything_to_time_is_a_contradiction(cli: Cli, others: list[str]) -> None:
    done = cli("bench", *others, "--summary", str(KILLS))
    assert done.code == 2
    assert "--summary only prints" in done.err
    assert (others[0] if others[0].startswith("--") and others[0] != "--m" else "a shape") in done.err


def test_only_what_there_is_is_said_of_means(cli: Cli, tuned: Any, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    assert cli(*BENCH, "--output", str(path)).code == 0
    data = json.loads(path.read_text())
    row = {**data["rows"][0], "group": "small"}
    path.write_text(json.dumps({**data, "rows": [row, {**row, "m": 56}], "summary": {"estimated": True}}))
    done = cli("bench", "--summary", str(path))
    assert done.code == 0
    assert "Geometric means of 2 rows (estimated): " in done.out
    assert ": ;" not in done.out
    assert "lowest" not in done.out
    assert "vs best" not in done.out
