"""The history: models, migrations, queries, export and merge."""

from gemmtune.db.history import History
from gemmtune.db.records import (
    ExportRecord,
    FailureGroup,
    KernelData,
    MeasurementData,
    MeasurementRecord,
    MergeReport,
    StudyRecord,
    StudySpec,
    Timing,
    TrialRecord,
    TrialResult,
    VerificationData,
)
from gemmtune.db.store import describe
from gemmtune.db.study import Study

__all__ = [
    "History",
    "Study",
    "StudySpec",
    "TrialResult",
    "KernelData",
    "VerificationData",
    "MeasurementData",
    "Timing",
    "TrialRecord",
    "MeasurementRecord",
    "StudyRecord",
    "FailureGroup",
    "ExportRecord",
    "MergeReport",
    "describe",
]
