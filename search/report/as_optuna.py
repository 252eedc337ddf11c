"""Recorded trials as a study of Optuna's, for its dashboard and whatever else reads Optuna's storages.

The knobs of each family are parameters of their own, ``family.knob``; where there are several families, ``family`` is
one more. Every parameter is categorical, as in the search. The value is the study's measure: the ratio to the baseline,
which is maximised, or a time, which is minimised.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import datetime

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from gemmtune.db.records import TrialRecord
from gemmtune.search.report.material import Material, Measure, is_correct, knobs
from gemmtune.space.configuration import Configuration


def trials_of(records: Sequence[TrialRecord], measure: Measure) -> list[FrozenTrial]:
    """Each trial as Optuna's: complete where it is correct and timed, else failed, with the reason as an attribute."""
    by_family: dict[str, list[TrialRecord]] = {}
    for record in records:
        by_family.setdefault(record.family, []).append(record)
    choices = {family: knobs(members) for family, members in by_family.items()}
    return [_trial(record, choices, measure) for record in records]


def _trial(record: TrialRecord, choices: dict[str, dict[str, list[int | str]]], measure: Measure) -> FrozenTrial:
    configuration = Configuration.parse(record.configuration)
    values: dict[str, int | str] = {}
    distributions: dict[str, BaseDistribution] = {}
    if len(choices) > 1:
        values["family"], distributions["family"] = record.family, CategoricalDistribution(list(choices))
    for name, value in configuration.items():
        key = f"{record.family}.{name}"
        values[key], distributions[key] = value, CategoricalDistribution(choices[record.family][name])
    value_or_none = measure.of(record) if is_correct(record) else None
    facts = {
        "trial": record.id, "uuid": record.uuid, "outcome": record.outcome, "detail": record.detail,
        "configuration": record.configuration, "us": record.timing and record.timing.us,
        "ratio": record.timing and record.timing.ratio, "registers": record.registers,
        "spill_bytes": record.spill_bytes, "shared_bytes": record.shared_bytes, "cubin": record.cubin_sha256,
        "estimated": record.estimated,
    }  # fmt: skip
    trial = create_trial(
        state=TrialState.FAIL if value_or_none is None else TrialState.COMPLETE,
        value=value_or_none,
        params=values,
        distributions=distributions,
        user_attrs={name: fact for name, fact in facts.items() if fact not in (None, "")},
    )
    trial.datetime_start = datetime.fromtimestamp(record.started)
    trial.datetime_complete = datetime.fromtimestamp(record.finished or record.started)
    return trial


def study_of(material: Material, storage: BaseStorage | None = None) -> optuna.Study:
    """The whole study, in ``storage`` or in memory, named after its problem, device and number."""
    study, measure = material.study, material.measure
    name = f"{study.problem_key} on {study.kind} {study.gpu.short or study.gpu.name}, {study.regime}, {study.cache}"
    out = empty(measure, storage, f"{study.id}: {name}")
    out.add_trials(trials_of(material.trials, measure))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an experimental method, in Optuna's words
        out.set_metric_names([measure.label])
    about = {"gpu": study.gpu.key, "regime": study.regime, "cache": study.cache, "strategy": study.strategy,
             "seed": study.seed, "uuid": study.uuid}  # fmt: skip
    for key, value in {**about, **study.environment}.items():
        out.set_user_attr(key, value)
    return out


def empty(measure: Measure, storage: BaseStorage | None = None, name: str | None = None) -> optuna.Study:
    """A study without trials that goes the way of the measure; nothing is logged."""
    direction = StudyDirection.MAXIMIZE if measure.ratio else StudyDirection.MINIMIZE
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        return optuna.create_study(storage=storage, study_name=name, direction=direction)
    finally:
        optuna.logging.set_verbosity(verbosity)
