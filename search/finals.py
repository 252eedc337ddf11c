"""The finals: the best of a study measured against each other, and the winner chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.db import Study, Timing, TrialRecord
from gemmtune.device.base import Job, Outcome
from gemmtune.search.ranking import best_first, complexity
from gemmtune.search.recording import measurement_data
from gemmtune.search.trial import TrialRunner
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import CompileError
from gemmtune.space.family import Family
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem

FINALISTS = 8
BASE_LIMIT, LIMIT_EACH = 60.0, 30.0
"""Seconds the finals may take: for the worker's start, and for each finalist."""


def finalists(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The best few by their own trials."""
    return best_first(records)[:FINALISTS]


def run_finals(runner: TrialRunner, study: Study, candidates: Sequence[TrialRecord]) -> None:
    """Measure ``candidates`` interleaved with each other and the baseline, and add the times to their trials.

    One that does not come back (its kernel fails now) simply gets no new time.
    """
    kernels: list[CompiledKernel] = []
    kept: list[TrialRecord] = []
    for record, prepared in [(r, runner.prepare(Configuration.parse(r.configuration))) for r in candidates]:
        if prepared.compiling is None:
            continue
        try:
            kernels.append(prepared.compiling.result())
        except CompileError:
            continue
        kept.append(record)
    timing = runner.timing
    jobs = [
        Job(
            problem=runner.problem,
            kernel=kernel,
            seed=timing.trial_seed(record.number),
            regime=timing.regime,
            cache=timing.cache,
            verify=False,
            effort="final",
        )
        for record, kernel in zip(kept, kernels, strict=True)
    ]
    if not jobs:
        return
    reports = runner.device.compare(jobs, BASE_LIMIT + LIMIT_EACH * len(jobs))
    for record, report in zip(kept, reports, strict=True):
        data = measurement_data(report.measurement, runner.problem)
        if report.outcome == Outcome.CORRECT and data is not None:
            study.add_measurement(record.id, data, final=True)


def standing(
    records: Iterable[TrialRecord], problem: Problem, gpu: Gpu, families: Iterable[Family]
) -> list[TrialRecord]:
    """The correct trials, the winner first: those measured in the finals before the others, each by its time.

    Where others' medians lie within the 95 % interval of the quickest one, they are equals, and the simplest of them
    (:func:`gemmtune.search.ranking.complexity`) goes first.
    """
    ranked = best_first(records)
    in_finals = sorted((r for r in ranked if r.final), key=lambda r: _cost(r.final))
    ordered = in_finals + [r for r in ranked if not r.final]
    if not ordered:
        return []
    quickest = ordered[0].timing
    equals = [r for r in in_finals or ordered if _equal(r.timing, quickest)]
    by_name = {family.name: family for family in families}

    def simplicity(record: TrialRecord) -> tuple[int | str, ...]:
        configuration = Configuration.parse(record.configuration)
        return complexity(problem, configuration, by_name[configuration.family], gpu)

    known = [r for r in equals if r.family in by_name]
    if not known:
        return ordered
    winner = min(known, key=simplicity)
    return [winner, *(r for r in ordered if r is not winner)]


def _cost(timing: Timing | None) -> float:
    if timing is None:
        return float("inf")
    return 1.0 / timing.ratio if timing.ratio is not None and not timing.estimated else timing.us


def _equal(timing: Timing | None, quickest: Timing | None) -> bool:
    """Whether a median lies within the interval of the quickest."""
    if timing is None or quickest is None:
        return False
    if timing.ratio is not None and quickest.ratio_low is not None and not timing.estimated:
        return timing.ratio >= quickest.ratio_low
    return timing.us <= quickest.us_high
