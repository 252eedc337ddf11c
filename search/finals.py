"""The finals: the best of a study measured against each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.db import History, MeasurementData, TrialRecord
from gemmtune.device.base import Job, Outcome, Report
from gemmtune.search.ranking import best_first
from gemmtune.search.recording import measurement_data
from gemmtune.search.trial import DISTURBED, FATAL, TrialRunner
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import CompileError

FINALISTS = 4
"""Few, since each settles anew before every sample: four take some twelve seconds at the power cap."""
BASE_LIMIT, LIMIT_EACH = 60.0, 5.0
"""Seconds the finals may take: for the worker's start and the rounds, and for each finalist."""


def finalists(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The best few by their own trials."""
    return best_first(records)[:FINALISTS]


def still_to_meet(records: Sequence[TrialRecord], history: History) -> list[TrialRecord]:
    """The finalists among a study's ``records`` that are to be measured among each other; none where they have met.

    Who was tried before the latest finals and did not come back from them is left out: its kernel may have cost a
    worker its life there.
    """
    met = [m.measured for r in records if r.final for m in history.measurements(r.id) if m.final]
    latest = max(met, default=0.0)
    staying = [r for r in finalists(records) if r.final or (r.finished or 0.0) >= latest]
    return [] if all(record.final for record in staying) else staying


def measure_finalists(
    runner: TrialRunner, candidates: Sequence[TrialRecord]
) -> list[tuple[TrialRecord, MeasurementData]]:
    """Measure ``candidates`` interleaved with each other and the baseline: the times of those that come back.

    Where the measurement is disturbed it is taken once more. Where it is lost with a kernel that failed, those that may
    have done so are run alone first, and who fails again is left out of the second measurement.

    Raises:
        ToolchainError: nothing can be compiled or run here.
    """
    kept = _jobs(runner, candidates)
    reports = _meet(runner, kept)
    if any(report.outcome in FATAL | DISTURBED for report in reports):
        staying = [
            (record, job)
            for (record, job), report in zip(kept, reports, strict=True)
            if _fails_not_alone(runner, job, report)
        ]
        again = _meet(runner, staying)
        if _timed(again) >= _timed(reports):
            kept, reports = staying, again
    out = []
    for (record, _), report in zip(kept, reports, strict=True):
        data = measurement_data(report.measurement, runner.problem)
        if report.outcome == Outcome.CORRECT and data is not None:
            out.append((record, data))
    return out


def _jobs(runner: TrialRunner, candidates: Sequence[TrialRecord]) -> list[tuple[TrialRecord, Job]]:
    """A job for each of ``candidates`` that compiles."""
    timing = runner.timing
    out = []
    for record, prepared in [(r, runner.prepare(Configuration.parse(r.configuration))) for r in candidates]:
        if prepared.compiling is None:
            continue
        try:
            kernel: CompiledKernel = prepared.compiling.result()
        except CompileError:
            continue
        seed = timing.trial_seed(record.number)
        job = Job(
            runner.problem, kernel, seed, timing.regime, timing.cache, verify=False, effort="final",
            thorough=timing.thorough,
        )  # fmt: skip
        out.append((record, job))
    return out


def _meet(runner: TrialRunner, kept: Sequence[tuple[TrialRecord, Job]]) -> list[Report]:
    if not kept:
        return []
    return runner.device.compare([job for _, job in kept], BASE_LIMIT + LIMIT_EACH * len(kept))


def _fails_not_alone(runner: TrialRunner, job: Job, report: Report) -> bool:
    """Whether a kernel may meet the others again: it did no harm, or does none when it runs alone."""
    if report.killed or report.outcome in (Outcome.CORRECT, Outcome.UNSTABLE):
        return not report.killed
    return runner.report(replace(job, effort="trial")).outcome in (Outcome.CORRECT, Outcome.UNSTABLE)


def _timed(reports: Sequence[Report]) -> int:
    return sum(report.outcome == Outcome.CORRECT for report in reports)
