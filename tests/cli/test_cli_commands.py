"""The command line as a whole: help, a real small study, queries, packs, histories, and how failures end."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gemmtune.cli import main
from gemmtune.db import History
from gemmtune.space import errors

Cli = Callable[..., Any]
SHAPE, TRIALS = "48x40x32", 3
COMMANDS = (
    "tune", "bench", "query", "show", "rerun", "diagnose", "export", "check", "devices", "doctor", "db", "cache",
)  # fmt: skip
CONFIGURATION = "simt bm=16 bn=16"


def test_help_names_every_command(cli: Cli) -> None:
    for arguments in (["--help"], ["-h"], []):
        done = cli(*arguments)
        assert done.code == 0
        assert all(f"\n  {command} " in done.out for command in COMMANDS)
        assert "\x1b" not in done.out
    for command in COMMANDS:
        assert cli(command, "--help").code == 0
    assert cli("query").code == 0
    assert cli("db").code == 0
    assert cli("--version").out.startswith("gemmtune 0.")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from gemmtune.cli.main import run; run(['--help']); run(['tune', '--help']);"
        "print([m for m in ('numpy', 'rich', 'sqlalchemy', 'optuna', 'jinja2', 'cupy', 'cuda') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("query", ["best", "trials", "failures", "studies", "importance"])
def test_a_query_imports_nothing_that_it_does_not_need(tmp_path: Path, query: str) -> None:
    path = str(tmp_path / "history.db")
    History(path).close()
    code = (
        f"import sys; from gemmtune.cli.main import run; run(['query', {query!r}, '--db', {path!r}]);"
        "heavy = ('numpy', 'rich', 'optuna', 'alembic', 'jinja2', 'gemmtune.device.base', 'gemmtune.space.families');"
        "print([m for m in (*heavy, 'gemmtune.cli.tune', 'sqlalchemy.orm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_console_script_is_installed() -> None:
    script = Path(sys.executable).with_name("gemmtune")
    done = subprocess.run([script, "tune", "0x1x1"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: Size m must be at least 1, but is 0.\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["tune"], "No shape is given"),
        (["tune", "512"], "MxNxK"),
        (["tune", "0x8x8"], "at least 1"),
        (["tune", "8x-8x8"], "at least 1"),
        (["tune", "--m", "8", "--n", "8", "--k", "-8"], "at least 1"),
        (["tune", "--m", "8", "--n", "8"], "--k"),
        (["tune", "--m", "x", "--n", "8", "--k", "8"], "--m"),
        (["tune", "2147483648x2147483648x2147483648"], "2**63"),
        (["tune", "8x8x8", "--dtype", "fp7"], "fp32, tf32, fp16, bf16"),
        (["tune", "8x8x8", "--out-dtype", "int8"], "fp32, fp16, bf16"),
        (["tune", "8x8x8", "--layout", "xy"], "nt, nn, tn, tt"),
        (["tune", "8x8x8", "--epilogue", "gelu99"], "identity"),
        (["tune", "8x8x8", "--shapes", "nowhere.toml"], "nowhere.toml"),
        (["tune", "8x8x8", "--time", "soon"], "10m"),
        (["tune", "8x8x8", "--device", "tpu:0"], "cuda:0"),
        (["tune", "8x8x8", "--device", "emulator:voodoo"], "h200"),
        (["tune", "8x8x8", "--device", "emulator:h200", "--family", "fft"], "simt"),
        (["tune", "8x8x8", "--device", "emulator:h200", "--strategy", "luck"], "tpe"),
        (["tune", "8x8x8", "--device", "emulator:h200", "--regime", "calm"], "sustained"),
        (["tune", "8x8x8", "--device", "emulator:h200", "--cache", "hot"], "cold"),
        (["tune", "8x8x8", "--device", "emulator:h200", "--trials", "0"], "trials"),
        (["tune", "8x8x8", "--device", "emulator:h200", "--workers", "0"], "workers"),
        (["tune", "8x8x8", "--device", "emulator:h200", "--seed", "-1"], "seed"),
        (["tune", "8x8x8", "--device", "emulator:v100", "--dtype", "bf16", "--family", "mma"], "mma"),
        (["tune", "-4x4x4"], "at least 1"),
        (["tune", "8x8x8", "--bogus"], "see 'gemmtune tune --help'"),
        (["query", "frobnicate"], "see 'gemmtune query --help'"),
        (["query", "best", "--family", "fft"], "simt"),
        (["bench", "8x8x8", "--output", "/"], "is a directory"),
        (["frobnicate"], "frobnicate"),
        (["bench"], "No shape is given"),
        (["bench", "--summary", "nowhere.json"], "nowhere.json"),
        (["query", "best", "--format", "xml"], "table, json or csv"),
        (["query", "best", "--limit", "0"], "--limit"),
        (["query", "trials", "--outcome", "sad"], "correct"),
        (["query", "failures", "--outcome", "sad", "--format", "json"], "correct"),
        (["quer", "best"], "query"),
        (["query", "best", "--gpu", "voodoo"], "voodoo"),
        (["query", "best", "--shape", "1"], "MxNxK"),
        (["query", "best", "--dtype", "fp7"], "fp7"),
        (["query", "why", CONFIGURATION], "--shape"),
        (["query", "why", "bm=1", "--shape", "8x8x8"], "knob=value"),
        (["query", "why", "fft a=1", "--shape", "8x8x8", "--gpu", "h200"], "fft"),
        (["query", "why", CONFIGURATION, "--shape", "8x8x8", "--gpu", "voodoo"], "voodoo"),
        (["export"], "NAME.kpack"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str
) -> None:
    History(tmp_path / "history.db").close()
    monkeypatch.setenv("GEMMTUNE_DB", str(tmp_path / "history.db"))
    done = cli(*arguments)
    assert done.code == 2, done
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert complaint in done.err


@pytest.mark.parametrize(
    "arguments",
    [["query", "best"], ["query", "trials"], ["query", "failures"], ["query", "studies"], ["db", "export", "x"],
     ["export", "x.kpack"]],
)  # fmt: skip
def test_a_mistyped_history_is_refused_and_not_created(cli: Cli, tmp_path: Path, arguments: list[str]) -> None:
    wrong = tmp_path / "typo" / "histroy.db"
    done = cli(*arguments, "--db", str(wrong))
    assert done.code == 1
    assert done.out == ""
    assert done.err == (
        f"error: There is no history at {wrong}: 'gemmtune tune' starts one, or give another with --db or "
        "GEMMTUNE_DB.\n"
    )
    assert not wrong.parent.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "nowhere.kpack"],
        ["db", "merge", "no.gz"],
        ["export", "out.kpack"],
        ["query", "best", "--db", "/"],
    ],
)
def test_other_failures_are_one_line_and_exit_1(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMTUNE_DB", str(tmp_path / "history.db"))
    done = cli(*arguments)
    assert done.code == 1, done
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1


def test_a_bug_is_no_user_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(main, "app", broken)
    with pytest.raises(ZeroDivisionError):
        cli("tune")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ToolchainError("no GPU"), 1),
        (errors.UnsupportedError("not here"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int) -> None:
    def failing(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(main, "app", failing)
    done = cli("tune")
    assert done.code == code
    assert done.err.startswith("error: ")


# ------------------------------------------------------------------------------------------------- a finished study


def test_tune_tells_its_course_and_what_next(tuned: tuple[Path, str]) -> None:
    history, out = tuned
    assert "\x1b" not in out
    assert f"gemm {SHAPE} fp32 nt on emulator:h200" in out
    assert "times are estimates" in out
    assert f"{TRIALS}/{TRIALS}" in out
    assert f"Best of gemm {SHAPE} fp32 nt, estimated" in out
    assert f"{TRIALS} trials in " in out
    assert str(history) in out
    assert "gemmtune export" in out
    assert f"gemmtune query best --shape {SHAPE}" in out


def test_the_same_command_again_runs_nothing(cli: Cli, tuned: tuple[Path, str], study: list[str]) -> None:
    done = cli("tune", *study)
    assert done.code == 0
    assert f"{TRIALS} done before" in done.out
    assert f"{TRIALS} of them before this run" in done.out
    first = [line for line in tuned[1].splitlines() if line.startswith("1 ")]
    assert first == [line for line in done.out.splitlines() if line.startswith("1 ")]


@pytest.mark.parametrize("query", ["best", "trials"])
def test_queries_as_table_json_and_csv(cli: Cli, tuned: tuple[Path, str], query: str) -> None:
    narrow = ["--gpu", "h200", "--shape", SHAPE, "--dtype", "fp32", "--family", "simt", "--limit", "2"]
    table = cli("query", query, *narrow)
    assert table.code == 0
    assert table.out.splitlines()[0] == f"gemm {SHAPE} fp32 nt on emulator h200, sustained, cold cache"
    assert len([line for line in table.out.splitlines() if " est. " in line]) == 2
    assert "est." in table.out
    found = json.loads(cli("query", query, "--format", "json").out)
    assert len(found) == TRIALS
    for row in found:
        assert row["problem"] == f"gemm {SHAPE} fp32 nt"
        assert row["outcome"] == "correct"
        assert row["estimated"] is True
        assert row["ratio"] is None
        assert row["us"] > 0
        assert row["rel_error"] <= row["error_bound"]
    rows = list(csv.DictReader(io.StringIO(cli("query", query, "--format", "csv").out)))
    assert [row["configuration"] for row in rows] == [row["configuration"] for row in found]
    assert [row["rank"] for row in found] == ([1, 2, 3] if query == "best" else [None] * TRIALS)


def test_queries_that_find_nothing_say_so(cli: Cli, tuned: tuple[Path, str]) -> None:
    assert "gemmtune tune" in cli("query", "best", "--shape", "9x9x9").out
    assert "gemmtune tune" in cli("query", "trials", "--shape", "9x9x9").out
    assert "gemmtune tune" in cli("query", "studies", "--shape", "9x9x9").out
    assert "No failed trial" in cli("query", "failures").out
    assert json.loads(cli("query", "failures", "--format", "json").out) == []
    assert cli("query", "failures", "--format", "csv").out == ""


def test_studies(cli: Cli, tuned: tuple[Path, str]) -> None:
    (study,) = json.loads(cli("query", "studies", "--format", "json").out)
    assert study["trials"] == study["correct"] == TRIALS
    assert study["best"]["problem"] == study["problem"]
    assert "on emulator h200, sustained, cold cache, auto, seed 0" in cli("query", "studies").out


def test_studies_for_a_spreadsheet_have_plain_columns(cli: Cli, tuned: tuple[Path, str]) -> None:
    (study,) = json.loads(cli("query", "studies", "--format", "json").out)
    (row,) = csv.DictReader(io.StringIO(cli("query", "studies", "--format", "csv").out))
    assert not any(cell.startswith(("{", "[")) for cell in row.values())
    assert datetime.fromisoformat(row["created"]).timestamp() == pytest.approx(study["created"], abs=1)
    assert row["families"] == "simt"
    assert (row["best_id"], row["best_us"]) == (str(study["best"]["id"]), str(study["best"]["us"]))
    assert row["best_configuration"] == study["best"]["configuration"]


def test_doctors_help_names_one_default_for_each_option(cli: Cli) -> None:
    text = " ".join(cli("doctor", "--help").out.split())
    assert text.count("[default: packed]") == 3
    assert "[default: 0]" not in text


def test_why(cli: Cli, tuned: tuple[Path, str]) -> None:
    tried = json.loads(cli("query", "best", "--format", "json").out)[0]["configuration"]
    where = ["--shape", SHAPE, "--dtype", "fp32", "--gpu", "h200"]
    done = cli("query", "why", tried, *where)
    assert "correct" in done.out
    assert "an estimated " in done.out
    invalid = tried.replace(" bm=", " bm=7")
    assert "is not among its values" in cli("query", "why", invalid, *where).out
    assert "no value is given for" in cli("query", "why", "simt bm=16", *where).out
    elsewhere = cli("query", "why", tried, "--shape", SHAPE, "--dtype", "fp32", "--gpu", "a100")
    assert "never tried" in elsewhere.out
    refused = cli("query", "why", "mma bm=16", "--shape", SHAPE, "--dtype", "fp32", "--gpu", "h200")
    assert "support:" in refused.out


def test_export_check_and_carrying_the_history(
    cli: Cli, tuned: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.db"  # an export is kept in the history, which other tests read
    copy.write_bytes(tuned[0].read_bytes())
    monkeypatch.setenv("GEMMTUNE_DB", str(copy))
    pack = tmp_path / "small.kpack"
    done = cli("export", str(pack))
    assert done.code == 0, done
    assert "estimated" in done.out
    assert "allow_estimates=True" in done.out
    assert cli("check", str(pack)).code == 0
    zipped = tmp_path / "small.zip"
    assert cli("export", str(zipped), "--gpu", "h200").code == 0
    assert zipped.is_file()
    assert cli("export", str(tmp_path / "none.kpack"), "--no-estimates").code == 1

    (manifest,) = pack.glob("manifest.json")
    manifest.write_text(manifest.read_text()[:-9])
    broken = cli("check", str(pack))
    assert broken.code == 1
    assert broken.err.startswith("error: ")

    carried, other = tmp_path / "history.gz", tmp_path / "other.db"
    assert cli("db", "export", str(carried)).code == 0
    assert f"{TRIALS} trials" in cli("db", "merge", str(carried), "--db", str(other)).out
    assert "nothing new" in cli("db", "merge", str(carried), "--db", str(other)).out
    assert len(json.loads(cli("query", "best", "--db", str(other), "--format", "json").out)) == TRIALS


def test_devices(cli: Cli) -> None:
    done = cli("devices")
    assert done.code == 0
    for word in ("emulator:h200", "emulator:v100", "simt", "mma", "NVRTC:", "C++ compiler:", "CuPy:"):
        assert word in done.out
    assert done.out.count(" *") == 1


def test_bench_writes_a_result_file_and_prints_it_again(cli: Cli, tuned: tuple[Path, str], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    done = cli("bench", SHAPE, "--dtype", "fp32", "--device", "emulator:h200", "--output", str(path))
    assert done.code == 0, done
    assert "est." in done.out
    assert "vs naive" in done.out
    again = cli("bench", "--summary", str(path))
    assert again.code == 0
    assert next(line for line in done.out.splitlines() if line.startswith("gemm ")) in again.out
    assert "ESTIMATES" in again.out


def test_bench_goes_on_after_a_problem_it_knows_nothing_of(cli: Cli, tuned: tuple[Path, str]) -> None:
    done = cli("bench", "9x9x9", SHAPE, "--dtype", "fp32", "--device", "emulator:h200")
    assert done.code == 1
    assert f"gemm {SHAPE} fp32 nt" in done.out
    assert done.err.startswith("error: No kernel is known for gemm 9x9x9 fp32 nt")
    assert done.err.count("\n") == 1


def test_bench_begins_no_history(cli: Cli, tmp_path: Path) -> None:
    absent = tmp_path / "misspelt.db"
    done = cli("bench", "64x64x64", "--device", "emulator:h200", "--db", str(absent))
    assert done.code == 1
    assert done.err.startswith(f"error: There is no history at {absent}: 'gemmtune tune' starts one")
    assert not absent.exists()


@pytest.mark.parametrize("cut", [0, 1, 200, -1], ids=["empty", "a byte", "half", "all but one byte"])
def test_a_merge_that_fails_begins_no_history(cli: Cli, tuned: tuple[Path, str], tmp_path: Path, cut: int) -> None:
    exported, fresh = tmp_path / "h.gz", tmp_path / "there" / "new.db"
    assert cli("db", "export", str(exported)).code == 0
    whole = exported.read_bytes()
    exported.write_bytes(whole[:cut])
    done = cli("db", "merge", str(exported), "--db", str(fresh))
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert not fresh.parent.exists()
    exported.write_bytes(whole)
    assert cli("db", "merge", str(exported), "--db", str(fresh)).code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["query", "best", "--limit", "1000000000000000000000"],
        ["query", "trials", "--limit", "9223372036854775808"],
        ["query", "importance", "--study", "9223372036854775808"],
        ["record", "study:99999999999999999999", "x.json"],
    ],
)
def test_numbers_that_no_history_holds_are_a_sentence(
    cli: Cli, tuned: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli(*words)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert not list(tmp_path.iterdir())
