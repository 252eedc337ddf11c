"""Why a configuration is not in the space, or what became of it: in sentences."""

from __future__ import annotations

from gemmtune.db import History, TrialRecord
from gemmtune.space.configuration import Configuration
from gemmtune.space.families import family
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem


def why(configuration: str, problem: Problem, gpu: Gpu, history: History | None) -> list[str]:
    """Every rule that refuses a configuration; else what its recorded trials came to; else that it was never tried.

    Several rules are several sentences after one that introduces them.

    Args:
        configuration: as tables print it, ``"mma bm=128 bn=128 ..."``.
        problem: what it would compute.
        gpu: where.
        history: where trials are looked up; None where there is none yet.

    Raises:
        ConfigurationError: the text is no configuration.
        UnknownNameError: its family does not exist.
    """
    asked = Configuration.parse(configuration)
    reasons = family(asked.family).why_invalid(problem, asked, gpu)
    where = f"{problem.key} on {gpu.short or gpu.name}"
    if len(reasons) == 1:
        return [f"It is not valid for {where}: {reasons[0]}."]
    if reasons:
        return [f"It is not valid for {where}, for {len(reasons)} reasons:", *(f"- {reason}." for reason in reasons)]
    records = history.find(problem.key, gpu.key, configuration_key=asked.key) if history else []
    if not records:
        return [f"It is valid for {where}, and was never tried."]
    return [_sentence(record) for record in records]


def _sentence(record: TrialRecord) -> str:
    where = f"{record.kind}, {record.regime}, {record.cache} cache"
    said = f"Trial {record.id} ({where}) ended as {record.outcome.replace('_', ' ')}"
    time = record.timing
    if time is not None:
        said += f" with {'an estimated ' if time.estimated else ''}{time.us:.2f} us"
        if time.ratio is not None:
            said += f", {time.ratio:.3f} x the baseline"
    return f"{said}: {record.detail}" if record.detail else f"{said}."
