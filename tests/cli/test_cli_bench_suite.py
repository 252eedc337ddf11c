"""``gemmtune bench --suite``: groups and their means, notes on peers, files that grow by another regime."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmtune.cli import bench_table
from gemmtune.search.result_file import write_result_file
from gemmtune.search.results import BenchRow, read_result_file

Cli = Callable[..., Any]
SUITE = "[small]\nshapes = [[48, 40, 32]]\n[unknown]\nshapes = [[9, 9, 9]]\n"
EMULATED = ["--dtype", "fp32", "--device", "emulator:h200"]

ROW = BenchRow(
    m=4096, n=4096, k=1024, dtype="bf16", out_dtype="bf16", layout="nt", epilogue="identity", scaling="none",
    regime="sustained", cache="cold", family="hopper", config="hopper bm=128", trials=100, wall_s=12.5, us=50.0,
    us_low=49.0, us_high=51.0, floor_us=45.0, peers={"cublas": 60.0, "cublaslt16": 55.0}, rel_error=1e-3,
    error_bound=4e-3, group="prefill",
)  # fmt: skip


@pytest.fixture
def suite(tmp_path: Path) -> str:
    path = tmp_path / "suite.toml"
    path.write_text(SUITE)
    return str(path)


def test_a_suite_is_benchmarked_by_group_into_a_file(cli: Cli, tuned: Any, suite: str, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    done = cli("bench", "--suite", suite, "--groups", "small", *EMULATED, "--output", str(path))
    assert done.code == 0, done
    assert "small  gemm 48x40x32 fp32 nt" in done.out
    assert "floor us" in done.out
    assert "naive" not in done.out
    (row,) = read_result_file(path).rows
    assert row.group == "small"
    assert read_result_file(path).summary["by_group"]["small"]["rows"] == 1
    named = cli("bench", "--suite", suite, "--groups", "small", "--peers", "naive", *EMULATED)
    assert "vs naive" in named.out


def test_a_shape_without_a_kernel_is_told_in_the_file_too(cli: Cli, tuned: Any, suite: str, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    done = cli("bench", "--suite", suite, *EMULATED, "--output", str(path))
    assert done.code == 1
    assert done.err.startswith("error: No kernel is known for gemm 9x9x9")
    assert "gemm 9x9x9" in read_result_file(path).summary["notes"][0]


def test_rows_of_another_regime_stay_in_the_file_with_means_of_their_own(
    cli: Cli, tuned: Any, suite: str, tmp_path: Path
) -> None:
    path = tmp_path / "out.json"
    arguments = ["bench", "--suite", suite, "--groups", "small", *EMULATED, "--output", str(path)]
    assert cli(*arguments).code == 0
    data = json.loads(path.read_text())
    data["rows"][0]["regime"] = "burst"
    path.write_text(json.dumps(data))
    for _ in range(2):
        assert cli(*arguments).code == 0
        found = read_result_file(path)
        assert [row.regime for row in found.rows] == ["burst", "sustained"]
        assert found.summary["apart"]["burst, cold"]["rows"] == 1


def test_a_file_that_lacks_shapes_is_completed_and_says_which_are_of_another_run(
    cli: Cli, tuned: Any, tmp_path: Path
) -> None:
    path, suite = tmp_path / "out.json", tmp_path / "suite.toml"
    suite.write_text("[small]\nshapes = [[48, 40, 32], [56, 40, 32]]\n")
    arguments = ["bench", "--suite", str(suite), *EMULATED, "--output", str(path), "--missing"]
    assert cli(*arguments).code == 1  # 56 x 40 x 32 was never tuned; there was no file, so all was wanted
    data = json.loads(path.read_text())
    data["rows"][0]["m"] = 56
    data["summary"]["notes"] = ["gemm 48x40x32 fp32 nt: failed.", "gemm 56x40x32 fp32 nt: doubtful."]
    data["date"] = "2026-01-02T03:04:05+00:00"
    path.write_text(json.dumps(data))
    assert cli(*arguments).code == 0
    found = read_result_file(path)
    assert [row.m for row in found.rows] == [48, 56]  # in the suite's order
    assert found.summary["notes"] == [
        "gemm 56x40x32 fp32 nt: doubtful.",
        "Not in one run with the rows of 2026-01-02T03:04: gemm 48x40x32 fp32 nt.",
    ]
    before = path.read_text()
    done = cli(*arguments)
    assert (done.code, path.read_text()) == (0, before)
    assert "lacks none of these 2 problems" in done.out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--groups", "small"], "--suite"),
        (["8x8x8", "--missing"], "--output"),
        (["--suite", "nowhere.toml"], "nowhere.toml"),
        (["--launch", "sideways"], "any, plain, programmatic"),
        (["8x8x8", "--peers", "cutlass", "--device", "emulator:h200"], "cublaslt16, triton, deepgemm, naive"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str
) -> None:
    monkeypatch.setenv("GEMMTUNE_DB", str(tmp_path / "history.db"))
    done = cli("bench", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert complaint in done.err


def test_a_file_of_another_gpu_is_refused_before_anything_runs(
    cli: Cli, tuned: Any, suite: str, tmp_path: Path
) -> None:
    path = tmp_path / "other.json"
    arguments = ["bench", "--suite", suite, "--groups", "small", *EMULATED, "--output", str(path)]
    assert cli(*arguments).code == 0
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "gpu": "NVIDIA H100"}))
    done = cli(*arguments)
    assert done.code == 2
    assert "is of NVIDIA H100" in done.err


def test_the_table_shows_the_best_peer_the_groups_and_what_is_kept_apart(capsys: pytest.CaptureFixture[str]) -> None:
    slow = replace(ROW, m=64, us=100.0, us_low=100.0, us_high=100.0, group="decode")
    bench_table.show_rows([ROW, slow, replace(ROW, programmatic=True), replace(ROW, regime="burst")])
    out = capsys.readouterr().out
    assert "vs best" in out
    assert "sustained, cold, programmatic" in out
    assert "Geometric means of 2 rows: 0.85x cublas" in out
    assert "Against the vendor's best of each shape: 0.778x, lowest 0.550x (gemm 64x4096x1024 bf16 nt)" in out
    assert "1 row of 2 below 1" in out
    assert "Geometric means of 1 row, burst, cold: 1.20x cublas" in out
    groups = [line.split()[:3] for line in out.splitlines() if line.startswith(("prefill  ", "decode  "))]
    assert ["decode", "1", "0.55x"] in groups


def test_a_written_file_prints_its_groups_again(cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.json"
    write_result_file(path, [ROW, replace(ROW, m=64, group="decode")], device="emulator:h200")
    done = cli("bench", "--summary", str(path))
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()[-2:]] == ["prefill", "decode"]
