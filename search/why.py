"""Why a configuration is not in the space, or what became of it: in sentences."""

from __future__ import annotations

from gemmtune.db import History, TrialRecord
from gemmtune.space.configuration import Configuration
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem
from gemmtune.space.space import why_invalid


def why(configuration: str, problem: Problem, gpu: Gpu, history: History) -> list[str]:
    """Every rule that refuses a configuration; else what its recorded trials came to; else that it was never tried.

    Args:
        configuration: as tables print it, ``"mma bm=128 bn=128 ..."``.
        problem: what it would compute.
        gpu: where.
        history: where trials are looked up.

    Raises:
        ConfigurationError: the text is no configuration.
        UnknownNameError: its family does not exist.
    """
    asked = Configuration.parse(configuration)
    reasons = why_invalid(problem, asked, gpu)
    if reasons:
        return [f"It is not valid for {problem.key} on {gpu.short or gpu.name}: {reason}." for reason in reasons]
    records = history.find(problem.key, gpu.key, configuration_key=asked.key)
    if not records:
        return [f"It is valid for {problem.key} on {gpu.short or gpu.name}, and was never tried."]
    return [_sentence(record) for record in records]


def _sentence(record: TrialRecord) -> str:
    where = f"{record.kind}, {record.regime}, {record.cache} cache"
    said = f"Trial {record.number} of study {record.study_id} ({where}) ended as {record.outcome.replace('_', ' ')}"
    time = record.timing
    if time is not None:
        said += f" with {'an estimated ' if time.estimated else ''}{time.us:.2f} us"
        if time.ratio is not None:
            said += f", {time.ratio:.3f} x the baseline"
    return f"{said}: {record.detail}" if record.detail else f"{said}."
