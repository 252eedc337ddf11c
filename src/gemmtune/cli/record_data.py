"""Trials and studies as plain data: what commands print as JSON and CSV."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmtune.db.records import StudyRecord, TrialRecord


def trial_data(record: TrialRecord) -> dict[str, Any]:
    """A trial as flat data for programs: times in microseconds, moments in seconds since the epoch."""
    t = record.timing
    return {
        "rank": record.rank,
        "id": record.id,
        "uuid": record.uuid,
        "study": record.study_id,
        "trial": record.number,
        "problem": record.problem_key,
        "kind": record.kind,
        "gpu": record.gpu.name,
        "regime": record.regime,
        "cache": record.cache,
        "family": record.family,
        "configuration": record.configuration,
        "outcome": record.outcome,
        "detail": record.detail,
        "estimated": record.estimated,
        "us": t and t.us,
        "us_low": t and t.us_low,
        "us_high": t and t.us_high,
        "baseline": record.baseline,
        "baseline_us": t and t.baseline_us,
        "ratio": t and t.ratio,
        "ratio_low": t and t.ratio_low,
        "ratio_high": t and t.ratio_high,
        "final": bool(t and t.final),
        "rel_error": record.rel_error,
        "error_bound": record.error_bound,
        "coverage": record.coverage,
        "registers": record.registers,
        "spill_bytes": record.spill_bytes,
        "stack_bytes": record.stack_bytes,
        "shared_bytes": record.shared_bytes,
        "cubin_sha256": record.cubin_sha256,
        "nvrtc": record.nvrtc,
        "started": record.started,
        "finished": record.finished,
        "seconds": dict(record.seconds),
        "environment": dict(record.environment),
    }


def study_data(record: StudyRecord) -> dict[str, Any]:
    """A study as plain data, for programs."""
    return {
        "study": record.id,
        "uuid": record.uuid,
        "continues": record.parent_uuid,
        "problem": record.problem_key,
        "kind": record.kind,
        "gpu": record.gpu.name,
        "regime": record.regime,
        "cache": record.cache,
        "families": list(record.families),
        "strategy": record.strategy,
        "seed": record.seed,
        "created": record.created,
        "trials": record.trials,
        "correct": record.correct,
        "best": trial_data(record.best) if record.best else None,
        "environment": dict(record.environment),
    }


_OF_THE_BEST = ("id", "family", "configuration", "estimated", "us", "us_low", "us_high", "baseline_us", "ratio")


def study_row(record: StudyRecord) -> dict[str, Any]:
    """A study as plain columns, for spreadsheets: its best trial's beside its own, moments as ISO 8601 in UTC."""
    data = study_data(record)
    best: dict[str, Any] = data.pop("best") or {}
    environment = "; ".join(f"{name} {value}" for name, value in data.pop("environment").items())
    return {
        **data,
        "families": " ".join(record.families),
        "created": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds"),
        **{f"best_{name}": best.get(name) for name in _OF_THE_BEST},
        "environment": environment,
    }
