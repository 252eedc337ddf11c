"""Which knobs mattered in a study: Optuna's PED-ANOVA, family by family.

PED-ANOVA (Watanabe, Bansal, Hutter: "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary
Subspaces", IJCAI 2023) asks how differently a knob is distributed among the best trials than among all.
"""

from __future__ import annotations

import warnings

from gemmtune.search.report.material import Material, shared_knobs

FEWEST = 10
"""Correct trials of a family below which nothing is said: the best tenth of them would be one trial."""


def importance(material: Material, family: str) -> dict[str, float]:
    """The share of each knob that took several values, which sum to 1, the largest first.

    Empty where the family has too few correct trials, or only one value of every knob.
    """
    records = material.correct(family)
    varied = [name for name, values in shared_knobs(records).items() if len(values) > 1]
    if len(records) < FEWEST or not varied:
        return {}
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    from gemmtune.search.report.as_optuna import empty, trials_of

    study = empty(material.measure)
    study.add_trials(trials_of(records, material.measure))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PED-ANOVA is experimental in Optuna's words
        found = get_param_importances(
            study, evaluator=PedAnovaImportanceEvaluator(), params=[f"{family}.{name}" for name in varied]
        )
    shares = {name.partition(".")[2]: float(share) for name, share in found.items()}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
