"""Queries look at the newest studies first, and go on where those have nothing to show."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from gemmtune.db import History, ranking, samples
from gemmtune.db.filter import Filter
from gemmtune.space.gemm import Gemm


def test_what_lies_behind_many_empty_studies_is_found(
    path: Path, make: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "TOGETHER", 2)
    monkeypatch.setattr(samples, "TOGETHER", 2)
    with History(path) as history:
        for m in (64, 128):
            study = history.open_study(make.spec(Gemm(m, 512, 512)))
            for i, ratio in enumerate((1.0, 1.2)):
                make.run(study, i, make.correct(i, ratio))
        for m in range(1, 8):
            make.run(history.open_study(make.spec(Gemm(m, 512, 512))), 0, make.failed("compile", "no"))
        found = history.best(limit=20)
        assert [(r.problem_json["m"], r.rank, r.ratio) for r in found] == [
            (128, 1, 1.2), (128, 2, 1.0), (64, 1, 1.2), (64, 2, 1.0),
        ]  # fmt: skip
        assert history.best(limit=3) == [found[0], found[2]]  # a row to each of nine boards
        assert len(history.best(limit=None)) == 4
        assert [s.trials for s in history.studies(limit=8)] == [1] * 7 + [2]
        assert {s.study_id for s in samples.samples(history, Filter(), 3)} == {1, 2}
        assert {s.study_id for s in samples.samples(history, Filter(), 2)} == {2}
