"""Which knobs mattered: PED-ANOVA over a study, or over all that a GPU or a family has in the history.

PED-ANOVA (Watanabe, Bansal, Hutter: "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary
Subspaces", IJCAI 2023) asks how differently a knob is distributed among the best trials than among
all. Trials of different studies are compared by their place within their own study: times of different problems have
nothing in common, being among the best tenth has.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemmtune.db import History
from gemmtune.db.filter import Filter
from gemmtune.db.samples import Sample, samples
from gemmtune.space.configuration import Configuration, Value
from gemmtune.space.errors import GemmtuneError

TRIALS = 4000
"""Whole studies are taken, the newest first, until there are so many trials: more change no place."""
BEST = 0.1
"""The part of a study's trials that counts as its best."""
FEWEST = 20
"""Correct trials below which nothing is said: there would be one or two best ones."""


@dataclass(frozen=True)
class Knob:
    """A knob with its share of the importance of all (they sum to 1), and how the best trials set it.

    ``favoured`` is the value that is most overrepresented among the best, ``best_share`` and ``share`` the part of
    the best, and of all, trials that have it.
    """

    name: str
    importance: float
    favoured: Value
    best_share: float
    share: float


@dataclass(frozen=True)
class Importance:
    """What mattered to one family: over so many trials of so many studies, the most important knob first.

    ``best`` of the trials count as the best ones. ``knobs`` is empty where there are too few trials, or where
    every knob had one value.
    """

    family: str
    trials: int
    studies: int
    knobs: tuple[Knob, ...]
    best: int = 0


def importance(history: History, wanted: Filter) -> list[Importance]:
    """The importance of knobs for each family with correct trials that fit, the family with the most trials first.

    Raises:
        UnknownNameError: a GPU or dtype that neither the history nor gemmtune knows.
        ProblemError: a malformed shape.
    """
    by_family: dict[str, list[Sample]] = {}
    for sample in samples(history, wanted, TRIALS):
        by_family.setdefault(sample.family, []).append(sample)
    found = [of_family(family, group) for family, group in by_family.items()]
    return sorted(found, key=lambda one: (-one.trials, one.family))


def of_family(family: str, group: Sequence[Sample]) -> Importance:
    """The importance of one family's knobs; trials whose text this version cannot read are left out."""
    readable = [(values, sample) for sample in group if (values := _values(sample)) is not None]
    configurations = [values for values, _ in readable]
    places = _places([sample for _, sample in readable])
    studies = len({sample.study_id for _, sample in readable})
    names = [name for name in configurations[0] if all(name in values for values in configurations)] if readable else []
    varied = [name for name in names if len({values[name] for values in configurations}) > 1]
    if len(readable) < FEWEST or not varied:
        return Importance(family, len(readable), studies, ())
    shares = ped_anova([{name: values[name] for name in varied} for values in configurations], places)
    best = [values for values, place in zip(configurations, places, strict=True) if place <= BEST]
    knobs = [Knob(name, share, *_favoured(name, configurations, best)) for name, share in shares.items()]
    return Importance(
        family, len(readable), studies, tuple(sorted(knobs, key=lambda knob: -knob.importance)), len(best)
    )


def _values(sample: Sample) -> Mapping[str, Value] | None:
    try:
        configuration = Configuration.parse(sample.configuration)
    except GemmtuneError:
        return None
    return dict(configuration) if configuration.family == sample.family else None


def _places(group: Sequence[Sample]) -> list[float]:
    """The place of each trial in its study, 0 (excluded) .. 1; equal scores share the better one."""
    studies: dict[int, list[float]] = {}
    for sample in group:
        studies.setdefault(sample.study_id, []).append(sample.score)
    place = {
        study: {score: i / len(scores) for i, score in reversed(list(enumerate(sorted(scores), 1)))}
        for study, scores in studies.items()
    }
    return [place[sample.study_id][sample.score] for sample in group]


def ped_anova(configurations: Sequence[Mapping[str, Value]], places: Sequence[float]) -> dict[str, float]:
    """The share of each knob, which sum to 1: Pearson's divergence of its values among the best from those of all.

    The same figures as Optuna's ``PedAnovaImportanceEvaluator`` gives for categorical parameters, whose trial objects
    take a second or more for some thousands of trials.
    """
    cutoff = sorted(places)[math.ceil(BEST * len(places)) - 1]
    best = [place <= cutoff for place in places]
    found = {}
    for name in configurations[0]:
        column = [values[name] for values in configurations]
        everywhere = Counter(column)
        leading = Counter(value for value, leads in zip(column, best, strict=True) if leads)
        top, all_ = (_smoothed([counts[value] for value in everywhere]) for counts in (leading, everywhere))
        found[name] = sum(p * (q / p - 1) ** 2 for p, q in zip(all_, top, strict=True))
    total = sum(found.values())
    return {name: share / total if total else 1 / len(found) for name, share in found.items()}


def _smoothed(counts: Sequence[int]) -> list[float]:
    """The density of a categorical Parzen estimator: a kernel for each value seen, and a flat one of weight 1."""
    kernels = sum(1 for count in counts if count) + 1
    flat = 1 / kernels
    row = 1 + len(counts) * flat
    total = sum(counts) + 1
    spread = sum(counts) * flat / row + 1 / len(counts)  # what every value gets from all kernels
    return [(spread + count / row) / total for count in counts]


def _favoured(
    name: str, all_: Sequence[Mapping[str, Value]], best: Sequence[Mapping[str, Value]]
) -> tuple[Value, float, float]:
    """The value that gained most among the best, and its part of the best and of all."""
    everywhere, leading = Counter(values[name] for values in all_), Counter(values[name] for values in best)
    gained = max(everywhere, key=lambda value: leading[value] / max(1, len(best)) - everywhere[value] / len(all_))
    return gained, leading[gained] / max(1, len(best)), everywhere[gained] / len(all_)
