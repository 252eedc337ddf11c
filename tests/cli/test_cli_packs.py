"""The commands around packs: export and back, diff, merge, tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
MAIN_JOB = str(Path(__file__).resolve().parents[2] / "benchmarks" / "h200" / "main-job.kpack.zip")


@pytest.fixture
def exported(cli: Cli, tuned: tuple[Path, str], tmp_path: Path) -> tuple[str, str]:
    """A pack of the small study, and a history: a copy, since an export is kept in it, and other tests read it."""
    path, copy = tmp_path / "small.kpack", tmp_path / "copy.db"
    copy.write_bytes(tuned[0].read_bytes())
    db = str(copy)
    done = cli("export", str(path), "--db", db)
    assert done.code == 0, done.err
    return str(path), db


def test_an_export_is_listed_and_comes_back(cli: Cli, exported: tuple[str, str], tmp_path: Path) -> None:
    path, db = exported
    listed = cli("pack", "exports", "--db", db).out.splitlines()
    assert listed[0].split() == ["id", "name", "date", "files", "manifest"]
    key, name = listed[1].split()[:2]
    assert name == "small.kpack"
    done = cli("export", str(tmp_path / "again.kpack"), "--from-export", key, "--db", db)
    assert done.code == 0, done.err
    assert f"export {key} (small.kpack" in done.out
    assert cli("diff", path, str(tmp_path / "again.kpack"), "--strict").out.split() == ["1", "same"]
    assert cli("export", str(tmp_path / "zip"), "--from-export", "latest", "--zip", "--db", db).code == 0
    assert (tmp_path / "zip").is_file()


def test_an_earlier_export_takes_no_other_choice(cli: Cli, exported: tuple[str, str], tmp_path: Path) -> None:
    _, db = exported
    done = cli("export", str(tmp_path / "x.kpack"), "--from-export", "latest", "--gpu", "h200", "--db", db)
    assert (done.code, "comes back as it was" in done.err) == (2, True)
    done = cli("export", str(tmp_path / "x.kpack"), "--from-export", "no-such", "--db", db)
    assert (done.code, "There is no export 'no-such'" in done.err) == (2, True)


def test_packs_merge_and_differ(cli: Cli, exported: tuple[str, str], tmp_path: Path) -> None:
    small, _ = exported
    both = str(tmp_path / "both.kpack")
    done = cli("pack", "merge", both, MAIN_JOB, small)
    assert done.code == 0, done.err
    assert "for NVIDIA H200" in done.out
    done = cli("diff", MAIN_JOB, both)
    assert done.code == 0
    assert "1 added" in done.out
    assert "48x40x32" in done.out
    back = cli("diff", both, MAIN_JOB, "--strict", "--format", "json")
    assert back.code == 1
    assert [c["what"] for c in json.loads(back.out)] == ["lost"]
    rows = cli("diff", both, MAIN_JOB, "--all", "--format", "csv").out
    assert {r["what"] for r in csv.DictReader(io.StringIO(rows))} == {"lost", "same"}


def test_the_table_in_every_form(cli: Cli, tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("pack", "table", MAIN_JOB).out)))
    assert rows == [
        {k: "" if v is None else str(v) for k, v in r.items()}
        for r in json.loads(cli("pack", "table", MAIN_JOB, "--format", "json").out)
    ]
    for form in ("csv", "json"):
        printed, path = cli("pack", "table", MAIN_JOB, "--format", form).out, tmp_path / form
        done = cli("pack", "table", MAIN_JOB, "--format", form, "--output", str(path))
        assert (done.code, done.out) == (0, f"The table is written to {path}.\n")
        assert path.read_text() == printed
    done = cli("pack", "table", MAIN_JOB, "--format", "serving", "-o", str(tmp_path / "serving"))
    assert done.code == 0, done.err
    names = sorted(Path(line).name for line in done.out.splitlines())
    assert names == sorted(p.name for p in (tmp_path / "serving").iterdir())
    assert all("device_name=NVIDIA_H200" in name for name in names)


def test_a_pack_is_neither_checked_nor_widened_on_what_runs_or_times_nothing(
    cli: Cli, exported: tuple[str, str], tmp_path: Path
) -> None:
    path, db = exported
    new = tmp_path / "new.kpack"
    for arguments, words in (
        (("check", path, "--device", "replay:some.json.gz"), "is a record, which runs no kernel"),
        (("export", str(new), "--db", db, "--device", "replay:some.json.gz"), "is a record, which runs no kernel"),
        (("export", str(new), "--db", db, "--device", "emulator:h200"), "emulator:h200 estimates"),
    ):
        done = cli(*arguments)
        assert (done.code, done.out) == (2, "")
        assert words in done.err
        assert "name a GPU (cuda:0)" in done.err
    assert not new.exists()
    assert "replay" not in cli("check", "--help").out
    assert "replay" not in cli("doctor", "--help").out
    assert "replay" in cli("tune", "--help").out


def test_check_says_in_its_last_line_what_was_verified(cli: Cli, exported: tuple[str, str]) -> None:
    done = cli("check", exported[0], "--device", "emulator:h200")
    assert done.code == 0
    assert done.out.splitlines()[-1].strip() == "1 of 1 kernel verified: 1 correct."
    done = cli("check", exported[0], "--device", "emulator:a100")
    assert done.code == 1
    assert done.out.splitlines()[-1].strip() == "0 of 1 kernel verified. Not verified: 1 compiled for another GPU."


def test_what_is_estimated_alone_and_was_to_stay_out_is_said(cli: Cli, exported: tuple[str, str]) -> None:
    done = cli("export", "none.kpack", "--no-estimates", "--db", exported[1])
    assert done.code == 1
    assert "is estimated (1 kernel), and estimates were to stay out" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("diff", MAIN_JOB, "missing.kpack"), 1, "missing.kpack"),
        (("diff", MAIN_JOB, MAIN_JOB, "--format", "xml"), 2, "The format 'xml' does not exist"),
        (("pack", "table", MAIN_JOB, "--output", "/proc/t.csv"), 2, "cannot be written"),
        (("pack", "table", MAIN_JOB, "--format", "xml"), 2, "The format 'xml' does not exist"),
        (("pack", "table", MAIN_JOB, "--format", "serving", "--regime", "lazy"), 2, "lazy"),
        (("pack", "table", MAIN_JOB, "--format", "serving", "--regime", "burst"), 1, "no measured row for burst"),
        (("pack", "merge", "out.kpack", "missing.kpack"), 1, "missing.kpack"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, arguments: tuple[str, ...], code: int, words: str) -> None:
    done = cli(*arguments)
    assert done.code == code
    assert words in done.err
    assert done.err.count("\n") == 1
