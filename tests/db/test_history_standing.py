"""Who wins: one rule for the results of studies, queries and packs, ties included."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.db import History, Study, TrialRecord
from gemmtune.db.standing import standing
from gemmtune.space import families
from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.family import Family, Traits
from gemmtune.space.gemm import Gemm
from gemmtune.space.recipe import LaunchRecipe


class Staged(Family):
    """One knob, the number of stages: fewer are simpler."""

    name = "mma"
    summary = "for tests"

    def unsupported(self, problem, gpu):
        return None

    def parameters(self, problem, gpu):
        return (Parameter("bm", tuple(range(100))),)

    def plan(self, problem, configuration) -> LaunchRecipe:
        raise NotImplementedError

    def context(self, problem, configuration):
        return {}

    def traits(self, problem, configuration, gpu):
        return Traits(64, 64, 32, 1, configuration.integer("bm"), 128, 0, 64, "fma")


@pytest.fixture(autouse=True, scope="module")
def staged():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(families, "FAMILIES", {"mma": Staged()})
        yield


def winners(history: History, limit: int) -> set[str]:
    """Who wins by each of the questions that may be asked."""
    return {
        history.best(limit=limit)[0].configuration,
        history.best()[0].configuration,
        history.best(limit=None)[0].configuration,
        history.best_kernels()[0].configuration,
        standing(history.trials(limit=None))[0].configuration,
    }


def test_among_equals_the_simplest_wins_whoever_asks(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec())
    for stages, ratio in ((5, 1.500), (4, 1.490), (2, 1.495), (1, 1.400)):  # the interval of 1.5 begins at 1.485
        make.run(study, stages, make.correct(stages, ratio), stages)
    assert winners(history, 1) == {"mma bm=2 stages=3"}
    assert [(r.number, r.rank) for r in history.best()] == [(2, 1), (5, 2), (4, 3), (1, 4)]
    assert [(r.number, r.rank) for r in history.best(limit=2)] == [(2, 1), (5, 2)]
    assert [s.best.number for s in history.studies()] == [2]


@pytest.mark.parametrize(
    ("ratio", "half_interval", "equal"),
    [
        (1.494, 0.01, True),
        (1.494, 0.001, False),  # the intervals do not meet
        (1.480, 0.01, False),  # they do, but so much is not given up for simplicity
        (1.480, 0.2, False),
    ],
)
def test_equal_are_near_ones_whose_intervals_meet(
    history: History, make: SimpleNamespace, ratio: float, half_interval: float, equal: bool
):
    study = history.open_study(make.spec())
    for stages, value in ((5, 1.500), (4, ratio), (1, 1.400)):
        low, high = value * (1 - half_interval), value * (1 + half_interval)
        timed = replace(make.measurement(value), ratio_low=low, ratio_high=high)
        make.run(study, stages, replace(make.correct(stages), measurement=timed), stages)
    assert [r.number for r in history.best()] == ([4, 5, 1] if equal else [5, 4, 1])
    assert winners(history, 1) == {f"mma bm={4 if equal else 5} stages=3"}


def test_estimates_are_equal_where_they_are_the_same(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec(kind="emulator"))
    for stages, us in ((5, 3.0), (4, 3.0), (2, 3.0), (1, 3.001)):
        make.run(study, stages, replace(make.correct(stages), measurement=make.estimate(us)), stages)
    assert winners(history, 1) == {"mma bm=2 stages=3"}


def test_finalists_are_never_equal_to_others(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec())
    finalist = make.run(study, 5, make.correct(5, 1.5), 5)
    make.run(study, 1, make.correct(1, 1.5), 1)
    study.add_measurement(finalist, make.measurement(1.5))
    assert winners(history, 1) == {"mma bm=5 stages=3"}


def test_equals_of_several_studies_on_one_board(history: History, make: SimpleNamespace):
    for seed, stages in ((0, 4), (1, 2), (2, 3)):
        make.run(history.open_study(make.spec(seed=seed)), stages, make.correct(stages, 1.5 - stages / 1000), stages)
    assert winners(history, 1) == {"mma bm=2 stages=3"}


def test_other_boards_do_not_take_part(history: History, make: SimpleNamespace):
    make.run(history.open_study(make.spec()), 0, make.correct(5, 1.5), 5)
    for change in ({"regime": "burst"}, {"cache": "warm"}, {"environment": {"driver": "590"}}, {"device": "a100"}):
        make.run(history.open_study(make.spec(**change)), 0, make.correct(1, 1.5), 1)
    make.run(history.open_study(make.spec(Gemm(64, 512, 512))), 0, make.correct(1, 1.5), 1)
    rows = history.best(gpu="h200", regime="sustained", cache="cold", shape="512x512x512", limit=None)
    assert [(r.configuration, r.rank) for r in rows if r.environment["driver"] == "580"] == [("mma bm=5 stages=3", 1)]


@pytest.mark.parametrize(
    "change", [{"family": "own"}, {"configuration": "mma stages=1"}, {"problem_json": {"kind": "convolution"}}]
)
def test_what_this_version_does_not_know_wins_by_time_alone(
    history: History, make: SimpleNamespace, change: dict[str, object]
):
    study = history.open_study(make.spec())
    for stages, ratio in ((5, 1.5), (2, 1.495)):
        make.run(study, stages, make.correct(stages, ratio), stages)
    records = study.trials()
    assert [r.number for r in standing(records)] == [2, 5]
    unknown = [replace(r, **change) for r in records]
    assert [r.number for r in standing(unknown)] == [5, 2]


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(90, 110), st.booleans()), min_size=1, max_size=10),
    st.integers(1, 4), st.randoms(use_true_random=False),
)  # fmt: skip
def test_every_question_has_the_same_answer(
    make: SimpleNamespace, tried: Sequence[tuple[int, int, bool]], limit: int, shuffle: random.Random
):
    with History("sqlite://") as history:
        order = list(range(len(tried)))
        shuffle.shuffle(order)
        studies: list[Study] = [history.open_study(make.spec(seed=seed)) for seed in range(3)]
        for number in order:
            seed, percent, final = tried[number]
            ratio = percent / 100
            trial = make.run(studies[seed], number, make.correct(number, ratio), number)
            if final:
                studies[seed].add_measurement(trial, make.measurement(ratio))
        assert len(winners(history, limit)) == 1
        full = history.best(limit=None)
        assert [r.rank for r in full] == list(range(1, len(tried) + 1))
        assert [r.id for r in full] == [r.id for r in standing(history.trials(limit=None))]
        assert len(history.best(limit=limit)) == min(limit, len(tried))
        for study, record in zip(studies, reversed(history.studies()), strict=True):
            expected: list[TrialRecord] = standing(study.trials())
            assert (record.best and record.best.id) == (expected[0].id if expected else None)
        assert Configuration.parse(full[0].configuration).family == "mma"
