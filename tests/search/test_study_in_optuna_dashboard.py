"""A study as Optuna's own, and in its dashboard."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from gemmtune.db import History
from gemmtune.search.report.as_optuna import study_of
from gemmtune.search.report.material import gather
from gemmtune.space.errors import DatabaseError, SettingError, ToolchainError

pytest.importorskip("optuna_dashboard")
from gemmtune.search.report.dashboard import hand_over, server, write_storage

RECORDED = Path(__file__).parents[2] / "benchmarks" / "h200" / "main-job.history.gz"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """The committed history of the H200."""
    with History(tmp_path_factory.mktemp("dashboard") / "history.db") as history:
        history.merge(RECORDED)
        yield history


def test_optunas_best_trial_is_the_one_of_the_best_ratio(recorded: History) -> None:
    material = gather(recorded, recorded.study(1))
    study = study_of(material)
    ratios = {t.id: t.timing.ratio for t in material.ranking}
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE
    assert study.best_value == max(ratios.values())
    assert ratios[study.best_trial.user_attrs["trial"]] == study.best_value
    assert len(study.trials) == 100
    assert sum(t.state == optuna.trial.TrialState.COMPLETE for t in study.trials) == len(material.ranking)


def test_a_trial_keeps_its_knobs_and_what_became_of_it(recorded: History) -> None:
    material = gather(recorded, recorded.study(1))
    trial = study_of(material).trials[material.trials.index(material.winner)]
    assert trial.params["family"] == "mma"
    assert trial.params["mma.bm"] == 128
    assert trial.params["mma.smem"] == "xor"
    assert trial.user_attrs["registers"] == material.winner.registers
    assert trial.user_attrs["outcome"] == "correct"
    assert trial.duration.total_seconds() == pytest.approx(material.winner.finished - material.winner.started, abs=1e-4)


def test_the_dashboard_answers_with_the_studies(recorded: History) -> None:
    storage = hand_over([gather(recorded, recorded.study(i)) for i in (1, 6)])
    with server(storage, "127.0.0.1", 0) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        try:
            base = f"http://127.0.0.1:{serving.server_port}"
            with urllib.request.urlopen(f"{base}/api/studies", timeout=20) as answer:
                names = [s["study_name"] for s in json.load(answer)["study_summaries"]]
            with urllib.request.urlopen(f"{base}/dashboard/", timeout=20) as answer:
                assert b"<html" in answer.read().lower()
        finally:
            serving.shutdown()
            thread.join()
    assert sorted(names) == [
        "1: gemm 4096x4096x4096 bf16 nt on cuda h200, sustained, cold",
        "6: gemm 4096x4096x4096 fp32 nt on cuda h200, sustained, cold",
    ]


def test_a_port_that_is_taken_is_refused_in_a_sentence(recorded: History) -> None:
    storage = hand_over([])
    with server(storage, "127.0.0.1", 0) as serving, pytest.raises(SettingError, match="choose another --port"):
        server(storage, "127.0.0.1", serving.server_port)


def test_a_file_of_optunas_reads_back_and_is_never_overwritten(recorded: History, tmp_path: Path) -> None:
    path = tmp_path / "optuna.db"
    material = gather(recorded, recorded.study(10))
    material = replace(material, trials=material.trials[:15])
    write_storage([material], path)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    back = optuna.load_study(study_name=None, storage=f"sqlite:///{path}")
    assert back.best_value == study_of(material).best_value
    with pytest.raises(DatabaseError, match="is there already"):
        write_storage([material], path)


def test_without_optuna_dashboard_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna_dashboard", None)
    with pytest.raises(ToolchainError, match=r"pip install 'gemmtune\[dashboard\]'"):
        hand_over([])
