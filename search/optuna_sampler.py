"""The search that learns as a sampler of Optuna's, for those who drive a study of their own.

The parameters of a trial are the knobs of one family, each called ``family.knob``, and, where the space has several,
``family`` itself: the names that the strategy ``tpe`` uses. :func:`suggest` asks a trial for all of them::

    sampler = SpaceSampler(space, seed=0, budget=200)
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda trial: time_of(suggest(trial, space)), n_trials=200)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from gemmtune.search.strategy import Result, make_strategy
from gemmtune.space.configuration import Configuration, Value
from gemmtune.space.errors import ConfigurationError, SettingError
from gemmtune.space.space import Space

FAMILY = "family"
"""The parameter that says which family, where there are several."""


def distributions(space: Space) -> dict[str, CategoricalDistribution]:
    """Every parameter of a space, those of all families."""
    found: dict[str, CategoricalDistribution] = {}
    if len(space.families) > 1:
        found[FAMILY] = CategoricalDistribution([family.name for family in space.families])
    for family in space.families:
        for knob in space.parameters(family.name):
            found[f"{family.name}.{knob.name}"] = CategoricalDistribution(knob.values)
    return found


def suggest(trial: Trial, space: Space) -> Configuration:
    """The configuration that ``trial`` is to try."""
    name = space.families[0].name
    if len(space.families) > 1:
        name = str(trial.suggest_categorical(FAMILY, [family.name for family in space.families]))
    values = {
        knob.name: cast("Value", trial.suggest_categorical(f"{name}.{knob.name}", knob.values))
        for knob in space.parameters(name)
    }
    return Configuration.of(name, values)


class SpaceSampler(BaseSampler):
    """Proposes valid configurations of ``space``, each once; minimises.

    A trial told as failed teaches that its configuration is of no use. Trials that were enqueued, or that an earlier
    process left in the study's storage, are learned from where their configuration is in the space. It serves one study
    in one process.

    Args:
        space: what is searched.
        seed: of everything random.
        budget: trials that are planned.
        strategy: one of gemmtune's strategies.

    Raises:
        UnknownNameError: there is no strategy of that name.
        SettingError: (when asked) the study maximises, has several objectives, or the space is used up.
    """

    def __init__(self, space: Space, seed: int = 0, budget: int = 200, strategy: str = "auto") -> None:
        self._space = space
        self._strategy = make_strategy(strategy, space, seed, budget)
        self._known: set[int] = set()
        self._others = RandomSampler(seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters."""
        return dict(distributions(self._space))

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of the next configuration; none for a trial whose own are fixed already."""
        if study.directions != [StudyDirection.MINIMIZE]:
            raise SettingError("The sampler looks for the shortest time: let the study minimise one objective.")
        if "fixed_params" in trial.system_attrs:
            return {}
        self._catch_up(study)
        proposed = self._strategy.propose(1)
        if not proposed:
            raise SettingError(f"All {len(self._space)} configurations have been tried: ask for fewer trials.")
        configuration = self._space[proposed[0]]
        names = {f"{configuration.family}.{name}": value for name, value in configuration.items()}
        return {FAMILY: configuration.family, **names} if FAMILY in search_space else names

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """At random: a parameter that is not the space's."""
        return self._others.sample_independent(study, trial, param_name, param_distribution)

    def _catch_up(self, study: Study) -> None:
        """Learn from what has come in since the last time, in the order of the trials."""
        states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        results = []
        for trial in study.get_trials(deepcopy=False, states=states):
            if trial.number in self._known:
                continue
            self._known.add(trial.number)
            index = self._index(trial.params)
            if index is None:
                continue
            value = _time(trial.values) if trial.state == TrialState.COMPLETE else None
            results.append(Result(index, "correct" if value is not None else "failed", value))
        if results:
            self._strategy.observe(results)

    def _index(self, params: dict[str, Any]) -> int | None:
        """The configuration of a trial's parameters; None where they are none of the space's."""
        name = params.get(FAMILY, self._space.families[0].name)
        prefix = f"{name}."
        values = {key.removeprefix(prefix): value for key, value in params.items() if key.startswith(prefix)}
        try:
            return self._space.index(Configuration.of(str(name), values))
        except ConfigurationError:
            return None


def _time(values: Sequence[float] | None) -> float | None:
    """The one value, where it is a time."""
    return values[0] if values and 0 < values[0] < float("inf") else None
