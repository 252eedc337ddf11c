import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.db import History
from gemmtune.search.beliefs import cut
from gemmtune.search.features import Features
from gemmtune.search.gaussian import Posterior, Scales, _loss, below, expected_improvement, fit, matern
from gemmtune.search.gp import STALE, Gp
from gemmtune.search.start import spread
from gemmtune.search.strategy import Result, make_strategy
from gemmtune.search.study import tune
from gemmtune.space.errors import SettingError


def scales(features, noise=1e-2):
    return Scales(np.log(np.linspace(0.7, 2.0, features)), float(np.log(noise)))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), first=st.integers(1, 12), more=st.integers(1, 5))
def test_a_posterior_grown_step_by_step_is_the_one_made_at_once(seed, first, more):
    rng = np.random.default_rng(seed)
    tried, candidates = rng.normal(size=(first + more, 3)), rng.normal(size=(30, 3))
    at_once = Posterior(scales(3), candidates, tried)
    grown = Posterior(scales(3), candidates[:20], tried[:first])
    for row in tried[first:]:
        grown.add_trials(row[None])
    grown.add_candidates(candidates[20:])
    known = np.arange(first)
    y = rng.normal(size=first)
    assert grown.deviation() == pytest.approx(at_once.deviation(), abs=1e-6)
    assert grown.mean(known, y)[0] == pytest.approx(at_once.mean(known, y)[0], abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), n=st.integers(1, 15))
def test_the_posterior_is_that_of_the_textbook(seed, n):
    rng = np.random.default_rng(seed)
    tried, candidates, y = rng.normal(size=(n, 2)), rng.normal(size=(7, 2)), rng.normal(size=n)
    s = scales(2)
    posterior = Posterior(s, candidates, tried)
    x, c = s.scaled(tried), s.scaled(candidates)
    k = matern(x, x) + 1e-2 * np.eye(n)
    across = matern(x, c)
    variance = 1 - np.einsum("ij,ij->j", across, np.linalg.solve(k, across))
    assert posterior.mean(np.arange(n), y)[0] == pytest.approx(across.T @ np.linalg.solve(k, y), abs=1e-5)
    assert posterior.deviation() ** 2 == pytest.approx(variance, abs=1e-5)


def test_fitting_finds_the_feature_that_matters():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    y = np.sin(2 * x[:, 1])
    found = fit(x, (y - y.mean()) / y.std(), Scales.prior(4), 40)
    assert found.lengths.argmin() == 1
    assert np.exp(found.lengths[1]) < 0.3 * np.exp(np.delete(found.lengths, 1)).min()


def test_the_fit_follows_the_gradient_of_its_density():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(12, 3)), rng.normal(size=12)
    apart = np.ascontiguousarray(((x[:, None] - x[None]) ** 2).transpose(2, 0, 1))
    at = np.array([0.3, -0.2, 0.9, -3.0])
    _, slope = _loss(at, apart, y)
    for i, step in enumerate(1e-5 * np.eye(4)):
        rise = _loss(at + step, apart, y)[0] - _loss(at - step, apart, y)[0]
        assert slope[i] == pytest.approx(rise / 2e-5, rel=1e-4, abs=1e-6)


def test_spread_points_lie_farther_apart_than_random_ones():
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(2000, 5))

    def nearest(chosen):
        apart = np.linalg.norm(rows[chosen][:, None] - rows[chosen][None], axis=2) + 99 * np.eye(len(chosen))
        return apart.min(1).mean()

    chosen = spread(rows, 20, rng)
    assert len(chosen) == len(set(chosen)) == 20
    assert nearest(chosen) > 1.3 * nearest(rng.choice(2000, 20, replace=False))
    assert set(spread(rows[:3], 20, rng)) <= {0, 1, 2}
    assert spread(rows[:1], 20, rng) == [0]
    assert len(spread(np.zeros((4, 2)), 4, rng)) <= 4


def test_expected_improvement_and_the_normal_distribution_are_what_they_are_called():
    from statistics import NormalDist

    u = np.linspace(-5, 5, 41)
    assert below(u) == pytest.approx([NormalDist().cdf(v) for v in u], abs=2e-7)
    draws = np.random.default_rng(0).normal(1.0, 0.5, 200_000)
    got = expected_improvement(0.8, np.array([1.0]), np.array([0.5]))[0]
    assert got == pytest.approx(np.maximum(0.8 - draws, 0).mean(), rel=0.02)


def test_slow_times_are_cut_and_failures_are_slow():
    times = cut({1: 0.0, 2: 0.1, 3: 0.2, 4: 5.0, 5: 9.0}, [6])
    assert times == pytest.approx({1: 0.0, 2: 0.1, 3: 0.2, 4: 0.4, 5: 0.4, 6: 0.4})


def test_features_tell_knobs_apart_and_agree_with_the_space(space):
    rows = Features(space).rows(range(len(space)))
    assert np.isfinite(rows).all()
    assert len(np.unique(rows.round(9), axis=0)) == len(space)
    numbers, digits = space.digits(np.arange(len(space)))
    assert not numbers.any()
    for i in range(0, len(space), 37):
        values = [p.values[d] for p, d in zip(space.parameters("toy"), digits[i], strict=True)]
        assert values == list(space[i].values())


def test_it_finds_the_best_of_a_landscape_within_forty_trials(space, time_of):
    for seed in range(3):
        strategy = Gp(space, seed, 40)
        best = np.inf
        for _ in range(10):
            batch = strategy.propose(4)
            times = [time_of(space[i]) for i in batch]
            best = min(best, *times)
            strategy.observe([Result(i, "correct", t) for i, t in zip(batch, times, strict=True)])
        assert best <= 11


def test_a_search_that_finds_nothing_quicker_looks_two_steps_around_its_leader_against_its_belief(space):
    leader = len(space) // 2
    near = set(space.neighbours(leader))
    near |= {n for one in near for n in space.neighbours(one)} - {leader}
    strategy = Gp(space, 0, 200)
    told, before, after = 0, [], []
    batch = [leader, *(i for i in strategy.propose(4) if i != leader)]
    while told < STALE + 2 * len(near):
        times = [10.0 if i == leader else 90.0 if i in near else 11.0 for i in batch]
        strategy.observe([Result(i, "correct", t) for i, t in zip(batch, times, strict=True)])
        told += len(batch)
        untried = near - strategy.seen
        batch = strategy.propose(4)
        if len(untried) >= 2:
            (after if told > STALE + 1 else before).append(sum(i in near for i in batch))
    assert np.mean(before) < 1  # they are believed to be slow
    assert len(after) > 3
    assert min(after) >= 2


def test_failures_of_a_region_lead_away_from_it(space, time_of):
    strategy = Gp(space, 0, 60)
    batches = []
    for _ in range(15):
        batch = strategy.propose(4)
        batches.append(batch)
        strategy.observe(
            [Result(i, "wrong") if space[i]["stages"] > 2 else Result(i, "correct", time_of(space[i])) for i in batch]
        )
    late = [space[i]["stages"] for batch in batches[-6:] for i in batch]
    assert sum(stages <= 2 for stages in late) > len(late) / 2


def test_hope_falls_and_a_confident_search_ends_near_the_best(space, time_of):
    strategy = make_strategy("auto", space, 0, 200, confidence=0.95)
    best, tried = np.inf, 0
    assert strategy.hope() == 1
    while batch := strategy.propose(4):
        times = [time_of(space[i]) for i in batch]
        best, tried = min(best, *times), tried + len(batch)
        strategy.observe([Result(i, "correct", t) for i, t in zip(batch, times, strict=True)])
    assert 24 <= tried < 200
    assert best <= 10 * 1.01
    assert strategy.propose(4) == []


def test_a_study_with_a_confidence_ends_before_its_budget(toys, problem, fake_device, tmp_path):
    with History(tmp_path / "history.sqlite") as history:
        result = tune(problem, fake_device(), trials=250, confidence=0.9, history=history)[0]
    assert 24 <= result.trials < 250
    assert result.best[0].us <= 10.1


@pytest.mark.parametrize(("confidence", "strategy"), [(1.0, "gp"), (0.2, "auto"), (0.9, "random")])
def test_a_confidence_that_means_nothing_is_refused(problem, confidence, strategy):
    with pytest.raises(SettingError, match="confidence"):
        tune(problem, "emulator:h200", confidence=confidence, strategy=strategy)
