"""Importance of knobs: the one that decides comes first, over studies whose times have nothing in common."""

from __future__ import annotations

import itertools
import json
import random
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from gemmtune.cli.main import app
from gemmtune.db import History, MeasurementData, StudySpec, TrialResult
from gemmtune.db.filter import Filter
from gemmtune.db.samples import Sample, samples
from gemmtune.search.importance import BEST, FEWEST, importance, of_family, ped_anova
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import UnknownNameError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu


def spec(problem: Gemm, device: str = "h200", seed: int = 0) -> StudySpec:
    return StudySpec(
        problem.to_json(), problem.key, "cuda", gpu(device), {}, "sustained", "cold", ("simt", "mma"), "tpe", seed
    )  # fmt: skip


def knobs(i: int) -> dict[str, int | str]:
    """Forty settings of three knobs, of which ``bk`` decides the time."""
    bk, stages, store = list(itertools.product((16, 32, 64, 128), (2, 3, 4, 5, 6), ("direct", "shared")))[i]
    return {"bk": bk, "stages": stages, "store": store}


def fill(history: History, wanted: StudySpec, unit: float, family: str = "mma", trials: int = 40) -> int:
    study = history.open_study(wanted)
    for i in range(trials):
        values = knobs(i)
        us = unit * (300 - float(values["bk"]) - 0.1 * float(values["stages"]) - 0.001 * i)
        trial = study.claim(i, Configuration.of(family, values))
        study.finish(trial, TrialResult("correct", measurement=MeasurementData(us, us, us)))
    study.finish(study.claim(99, Configuration.of(family, {**knobs(0), "bk": 8})), TrialResult("compile", "no"))
    return study.id


@pytest.fixture
def history(tmp_path: Path) -> History:
    history = History(tmp_path / "history.db")
    fill(history, spec(Gemm(512, 512, 512)), 1)
    fill(history, spec(Gemm(4096, 4096, 4096)), 1000)
    fill(history, spec(Gemm(256, 256, 256), "a100"), 10, "simt")
    return history


def test_the_knob_that_decides_comes_first_also_over_problems_of_other_sizes(history: History) -> None:
    (found,) = importance(history, Filter(gpu="h200"))
    assert (found.family, found.trials, found.studies) == ("mma", 80, 2)
    first = found.knobs[0]
    assert (first.name, first.favoured, first.best_share, first.share) == ("bk", 128, 1.0, 0.25)
    assert sum(knob.importance for knob in found.knobs) == pytest.approx(1)


def test_it_is_narrowed_to_a_study_a_family_a_shape(history: History) -> None:
    everything = importance(history, Filter())
    assert [(one.family, one.trials) for one in everything] == [("mma", 80), ("simt", 40)]
    assert [one.trials for one in importance(history, Filter(study_id=1))] == [40]
    assert [one.family for one in importance(history, Filter(family="simt"))] == ["simt"]
    assert importance(history, Filter(family="hopper")) == []
    assert [one.studies for one in importance(history, Filter(shape="512x512x512"))] == [1]
    with pytest.raises(UnknownNameError):
        importance(history, Filter(gpu="nothing"))


@given(st.integers(20, 200), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=15)
def test_the_shares_are_those_of_optuna(trials: int, seed: int) -> None:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    draw = random.Random(seed)
    some = [{"a": draw.choice((1, 2, 4)), "b": draw.choice("xyzuvw"), "c": draw.choice((0, 1))} for _ in range(trials)]
    places = [draw.random() + 0.5 * (values["a"] == 2) for values in some]
    kinds: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(sorted({values[name] for values in some})) for name in some[0]
    }
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    study.add_trials(
        optuna.trial.create_trial(params=values, distributions=kinds, value=place)
        for values, place in zip(some, places, strict=True)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PED-ANOVA is experimental in Optuna's words
        theirs = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(target_quantile=BEST))
    assert ped_anova(some, places) == pytest.approx(theirs)


def test_knobs_of_one_value_and_too_few_trials_say_nothing() -> None:
    group = [Sample(1, "mma", str(Configuration.of("mma", {"bk": 32, "stages": i})), float(i)) for i in range(FEWEST)]
    assert [knob.name for knob in of_family("mma", group).knobs] == ["stages"]
    assert of_family("mma", group[1:]).knobs == ()
    assert of_family("mma", [Sample(1, "mma", "mma bk=32", 1.0)] * 50).knobs == ()
    assert of_family("mma", [*group, Sample(1, "mma", "???", 1.0)]).trials == FEWEST


def test_a_large_study_is_sampled_evenly_and_whole_studies_are_taken(history: History) -> None:
    assert {s.study_id for s in samples(history, Filter(), 41)} == {3, 2}
    few = samples(history, Filter(study_id=1), 10)
    assert len(few) == 10
    every = sorted(s.score for s in samples(history, Filter(study_id=1), 100))
    assert sorted(s.score for s in few) == every[::4]


def test_the_command_prints_tables_and_data(history: History) -> None:
    db = str(history.url.database)
    shown = CliRunner().invoke(app, ["query", "importance", "--gpu", "h200", "--db", db])
    assert shown.exit_code == 0, shown.output
    assert "mma: 80 correct trials of 2 studies" in shown.output
    first = next(line for line in shown.output.splitlines() if " bk " in line)
    assert "8 of 8 (100%)" in first
    assert "20 of 80 (25%)" in first
    assert "the value that gained most among the best 8" in shown.output
    assert "favour" not in shown.output
    data = json.loads(
        CliRunner().invoke(app, ["query", "importance", "--study", "3", "--format", "json", "--db", db]).output
    )
    assert {row["family"] for row in data} == {"simt"}
    assert data[0]["knob"] == "bk"
    assert (data[0]["best"], data[0]["trials"]) == (4, 40)
    none = CliRunner().invoke(app, ["query", "importance", "--study", "77", "--db", db])
    assert isinstance(none.exception, UnknownNameError)
