"""A study: strategies that propose, the course of a trial, resume, finals; benchmarks and result files.

``tune`` and ``StudyResult`` are here by name, loaded when first used: the parts of this room stand alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmtune.search.study import StudyResult as StudyResult
    from gemmtune.search.study import tune as tune

__all__ = ["StudyResult", "tune"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'gemmtune.search' has no attribute {name!r}")
    from gemmtune.search import study

    return getattr(study, name)
