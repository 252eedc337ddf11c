"""The pack and the history that stand behind the README's table stay readable, and agree with the result file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmtune.db import History
from gemmtune.pack.runtime import load_pack
from gemmtune.search.results import ResultFile, read_result_file

H200 = Path(__file__).resolve().parents[2] / "benchmarks" / "h200"


@pytest.fixture(scope="module")
def result() -> ResultFile:
    return read_result_file(H200 / "main-job.json")


def test_every_timed_kernel_is_in_the_pack_and_losers_stand_aside(result: ResultFile) -> None:
    pack = load_pack(H200 / "main-job.kpack.zip")
    assert len(pack.problems) == len(result.rows)
    for row in result.rows:
        said = pack.explain(row.m, row.n, row.k, dtype=row.dtype, layout=row.layout)
        assert row.config in str(said)
        won = row.ratio("cublas") or 0.0
        assert (said.kernel is not None) == (won > 1)


def test_the_history_holds_the_trials_of_every_row(result: ResultFile, tmp_path: Path) -> None:
    with History(tmp_path / "history.db") as history:
        assert history.merge(H200 / "main-job.history.gz").trials == sum(row.trials for row in result.rows)
        tried = {(s.problem_key, t.configuration) for s in history.studies() for t in history.trials(study_id=s.id)}
    assert all((row.problem.key, row.config) in tried for row in result.rows)
