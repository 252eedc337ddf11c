import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.search.start import APART, starting_points
from gemmtune.search.strategy import Result, make_strategy
from gemmtune.space.errors import UnknownNameError

NAMES = ["gp", "tpe", "random", "exhaustive"]


def play(strategy, space, time_of, batches, n=4, ahead=1):
    """Propose and observe in the rhythm of a study; the proposals."""
    waiting, out = [], []
    for _ in range(batches):
        waiting.append(strategy.propose(n))
        out += waiting[-1]
        if len(waiting) > ahead:
            strategy.observe([Result(i, "correct", time_of(space[i])) for i in waiting.pop(0)])
    return out


@pytest.mark.parametrize("name", NAMES)
def test_proposals_are_valid_and_never_repeat(name, space, time_of):
    proposals = play(make_strategy(name, space, 3, 80), space, time_of, 20)
    assert len(proposals) == len(set(proposals)) == 80
    assert all(0 <= i < len(space) for i in proposals)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_and_results_give_the_same_proposals(name, space, time_of):
    first, second = (play(make_strategy(name, space, 7, 60), space, time_of, 15) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", ["gp", "tpe", "random"])
def test_another_seed_gives_other_proposals(name, space, time_of):
    first, second = (play(make_strategy(name, space, seed, 60), space, time_of, 15) for seed in (1, 2))
    assert first != second


@pytest.mark.parametrize("name", NAMES)
def test_a_space_that_is_used_up_yields_each_configuration_once(name, space, time_of):
    few = SubSpace(space, 30)
    strategy = make_strategy(name, few, 0, 30)
    proposals = play(strategy, few, time_of, 9)
    assert sorted(proposals) == list(range(30))
    assert strategy.propose(4) == []


class SubSpace:
    """The first few configurations of a space, as a space."""

    def __init__(self, space, size):
        self.inner, self.size = space, size
        self.problem, self.gpu, self.families = space.problem, space.gpu, space.families

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        return self.inner[i]

    def index(self, configuration):
        from gemmtune.space.errors import ConfigurationError

        i = self.inner.index(configuration)
        if i >= self.size:
            raise ConfigurationError("outside")
        return i

    def neighbours(self, i):
        return [n for n in self.inner.neighbours(i) if n < self.size]

    def around(self, configuration):
        return [n for n in self.inner.around(configuration) if n < self.size]

    def digits(self, indices):
        return self.inner.digits(indices)

    def parameters(self, name):
        return self.inner.parameters(name)


def test_auto_is_exhaustive_where_the_budget_covers_the_space(space):
    assert make_strategy("auto", space, 0, len(space)).name == "exhaustive"
    assert make_strategy("auto", space, 0, len(space) - 1).name == "gp"


def test_an_unknown_strategy_is_refused_with_the_names_there_are(space):
    listed = "auto, gp, tpe, random, exhaustive"
    with pytest.raises(UnknownNameError, match=f"Unknown strategy 'hope': choose one of {listed}"):
        make_strategy("hope", space, 0, 10)


def test_exhaustive_goes_in_the_order_of_the_space_around_what_is_known(space):
    strategy = make_strategy("exhaustive", space, 0, 10)
    strategy.observe([Result(1, "correct", 1.0), Result(3, "wrong")])
    assert strategy.propose(4) == [0, 2, 4, 5]


def test_starting_points_are_distinct_and_the_estimated_ones_lie_apart(space):
    import numpy as np

    points = starting_points(space, 16, np.random.default_rng(0))
    assert len(set(points)) == 16
    estimated = [space[i] for i in points[0::2]]
    for a, b in itertools.combinations(estimated, 2):
        assert sum(a[k] != b[k] for k in a) >= APART


@pytest.mark.parametrize("outcome", ["wrong", "compile", "launch", "timeout", "infrastructure", "unstable", "pruned"])
def test_tpe_lives_with_failures_only(outcome, space):
    strategy = make_strategy("tpe", space, 0, 60)
    for _ in range(15):
        batch = strategy.propose(4)
        strategy.observe([Result(i, outcome) for i in batch])
    assert len(strategy.seen) == 60


def test_tpe_goes_on_from_results_it_did_not_ask_for(space, time_of):
    strategy = make_strategy("tpe", space, 0, 60)
    known = list(range(0, 200, 7))
    strategy.observe([Result(i, "correct", time_of(space[i])) for i in known])
    assert not set(strategy.propose(8)) & set(known)


def test_tpe_takes_neighbours_of_the_best_in_the_second_half(space, time_of):
    strategy = make_strategy("tpe", space, 0, 8)
    first = strategy.propose(4)
    strategy.observe([Result(i, "correct", time_of(space[i])) for i in first])
    near = {n for i in first for n in space.neighbours(i)}
    strategy._start = iter(())
    assert len(set(strategy.propose(4)) & near) >= 2


def test_tpe_beats_random_on_a_landscape_with_structure(space, time_of):
    def best(name, seed):
        proposals = play(make_strategy(name, space, seed, 80), space, time_of, 20, ahead=3)
        return min(time_of(space[i]) for i in proposals)

    seeds = range(6)
    assert sum(best("tpe", s) for s in seeds) < sum(best("random", s) for s in seeds)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), bad=st.sets(st.integers(0, 59), max_size=30), batch=st.integers(1, 9))
def test_whatever_the_results_tpe_never_repeats_itself(space, time_of, seed, bad, batch):
    strategy = make_strategy("tpe", space, seed, 60)
    seen: list[int] = []
    while len(seen) < 60:
        proposed = strategy.propose(min(batch, 60 - len(seen)))
        strategy.observe(
            [
                Result(i, "wrong") if len(seen) + j in bad else Result(i, "correct", time_of(space[i]))
                for j, i in enumerate(proposed)
            ]
        )
        seen += proposed
    assert len(set(seen)) == 60


def test_optuna_keeps_quiet_and_keeps_its_settings(space, capfd):
    import optuna

    before = optuna.logging.get_verbosity()
    make_strategy("tpe", space, 0, 20).propose(18)
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")
