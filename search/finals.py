"""The finals: the best of a study measured against each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.db import Study, TrialRecord
from gemmtune.device.base import Job, Outcome
from gemmtune.search.ranking import best_first
from gemmtune.search.recording import measurement_data
from gemmtune.search.trial import TrialRunner
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import CompileError

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
