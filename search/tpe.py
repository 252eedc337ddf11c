"""Optuna's tree-structured Parzen estimator on categorical knobs, helped by neighbours of the best.

Optuna lives in memory only: one study, asked and told, and rebuilt from recorded trials on resume. Each family's knobs
are parameters of their own (``family`` first, then ``family.knob``). Optuna cannot know which combinations are valid:
an invalid proposal is told at once, and the nearest valid configuration tried in its place; a repeated one is told, and
after a number of them a neighbour of the best is taken. Neither costs any budget.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import optuna
from optuna.trial import Trial, TrialState

from gemmtune.search.start import START, WARM, diverse, known_points, starting_points
from gemmtune.search.strategy import Result, Strategy
from gemmtune.space.configuration import Configuration, Value
from gemmtune.space.errors import ConfigurationError
from gemmtune.space.space import Space

KNOWN = 8
"""Points that families name, tried first."""
RETRIES = 20
"""Repeated or hopelessly invalid proposals in a row before a neighbour of the best is taken."""
LESSONS = 600
"""Invalid proposals that Optuna learns from; the time of each later proposal grows with their number."""
HOPELESS = 1e30
"""The value told with a violated constraint; Optuna ranks those by their violation alone."""


class Tpe(Strategy):
    """TPE; in the second half of the budget every other proposal is an unseen neighbour of the best five."""

    name = "tpe"

    def __init__(self, space: Space, seed: int, budget: int, warm: Sequence[int] = ()) -> None:
        super().__init__(space, seed)
        self._half = budget / 2
        self._invalid = 0
        start = starting_points(space, min(START, budget), self.rng)
        self._start = iter([*diverse(space, warm, WARM), *known_points(space, KNOWN), *start])
        self._names = [family.name for family in space.families]
        self._trials: dict[int, Trial] = {}
        self._asked: Trial | None = None
        with _quiet():
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=len(self._names) > 1)
            self._study = optuna.create_study(sampler=sampler)

    def _next(self) -> int:
        for index in self._start:
            if index not in self.seen:
                return index
        count = len(self.seen)
        if count >= self._half and count % 2:
            neighbour = self._unseen_neighbour()
            if neighbour is not None:
                return neighbour
        for _ in range(RETRIES):
            index_or_none = self._ask()
            if index_or_none is not None:
                return index_or_none
        neighbour = self._unseen_neighbour()
        return self._any_unseen() if neighbour is None else neighbour

    def _ask(self) -> int | None:
        """One proposal of Optuna's, mended where it was invalid; None where that fails or it was seen."""
        trial = self._study.ask()
        configuration = self._suggest(trial)
        try:
            index = self.space.index(configuration)
        except ConfigurationError:
            self._tell_invalid(trial)
            return self._repaired(configuration)
        if index in self.seen:
            self._study.tell(trial, state=TrialState.FAIL)
            return None
        self._asked = trial
        return index

    def _repaired(self, configuration: Configuration) -> int | None:
        """A valid, unseen configuration that differs from an invalid one in one knob; None where there is none.

        Most of a proposal is what Optuna has learned, and another proposal costs tens of milliseconds.
        """
        near = sorted(set(self.space.around(configuration)) - self.seen)
        return int(self.rng.choice(near)) if near else None

    def _tell_invalid(self, trial: Trial) -> None:
        self._invalid += 1
        if self._invalid > LESSONS:
            self._study.tell(trial, state=TrialState.FAIL)
            return
        trial.set_constraint("valid", 1.0)
        self._study.tell(trial, HOPELESS)

    def _suggest(self, trial: Trial) -> Configuration:
        name = self._names[0]
        if len(self._names) > 1:
            name = str(trial.suggest_categorical("family", self._names))
        values: dict[str, Value] = {}
        for knob in self.space.parameters(name):
            values[knob.name] = knob.values[0]
            if len(knob.values) > 1:
                values[knob.name] = cast("Value", trial.suggest_categorical(f"{name}.{knob.name}", knob.values))
        return Configuration.of(name, values)

    def _pending(self, index: int) -> None:
        """Optuna counts what is running as bad until told otherwise, so that it does not crowd around one guess."""
        trial, self._asked = self._asked, None
        if trial is None:  # not of Optuna's making: have it ask for just this one
            configuration = self.space[index]
            fixed = {f"{configuration.family}.{name}": value for name, value in configuration.items()}
            self._study.enqueue_trial({"family": configuration.family, **fixed})
            trial = self._study.ask()
            self._suggest(trial)
        self._trials[index] = trial

    def _learn(self, result: Result) -> None:
        trial = self._trials.pop(result.index)
        if result.objective is not None:
            self._study.tell(trial, result.objective)
        elif result.outcome == "infrastructure":  # says nothing about the configuration
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            trial.set_constraint(result.outcome, 1.0)
            self._study.tell(trial, HOPELESS)


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna without its log line and warning on creation; the host program's settings stay as they were."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)
