import optuna
import pytest

from gemmtune.search.optuna_sampler import SpaceSampler, suggest
from gemmtune.space.errors import SettingError

optuna.logging.set_verbosity(optuna.logging.ERROR)


def optimised(space, time_of, trials, **options):
    study = optuna.create_study(sampler=SpaceSampler(space, budget=trials, **options))
    study.optimize(lambda trial: time_of(suggest(trial, space)), n_trials=trials)
    return study


def test_a_study_of_optunas_tries_valid_configurations_each_once(space, time_of):
    study = optimised(space, time_of, 40)
    keys = {tuple(sorted(t.params.items())) for t in study.trials}
    assert len(keys) == 40
    assert study.best_value < 12


def test_the_same_seed_gives_the_same_trials(space, time_of):
    first, second = (optimised(space, time_of, 15, seed=1).trials for _ in range(2))
    assert [t.params for t in first] == [t.params for t in second]


def test_failures_and_enqueued_trials_are_learned_from(space, time_of):
    study = optuna.create_study(sampler=SpaceSampler(space, budget=30))
    study.enqueue_trial({f"toy.{name}": value for name, value in space[7].items()})

    def objective(trial):
        configuration = suggest(trial, space)
        if configuration["stages"] == 1:
            raise ValueError("no")
        return time_of(configuration)

    study.optimize(objective, n_trials=30, catch=(ValueError,))
    tried = [tuple(sorted(t.params.items())) for t in study.trials]
    assert tried[0] == tuple(sorted((f"toy.{name}", value) for name, value in space[7].items()))
    assert len(set(tried)) == 30


def test_a_study_that_maximises_is_refused(space, time_of):
    study = optuna.create_study(direction="maximize", sampler=SpaceSampler(space))
    with pytest.raises(SettingError, match="minimise"):
        study.optimize(lambda trial: time_of(suggest(trial, space)), n_trials=1)
