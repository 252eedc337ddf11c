"""A GPU whose kernels win but at the sizes it is told: for ranges that are claimed and judged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gemmtune.device.base import Job, Limits, Measurement, Outcome, Report


class Gpu:
    """Kernels win everywhere but at the sizes in ``losing``, and are wrong at those in ``wrong``.

    A kernel in ``most`` loses above that M.
    """

    def __init__(self, losing: set[int], wrong: set[int] | None = None, most: dict[str, int] | None = None) -> None:
        self.losing, self.wrong, self.most = losing, wrong or set(), most or {}
        self.measured: list[tuple[int, int]] = []
        self.runs: list[tuple[str, int]] = []

    def run(self, job: Job, limits: Limits) -> Report:
        m = job.problem.axes["m"]
        self.measured.append((m, job.seed))
        self.runs.append((job.kernel.cubin_sha256, m))
        ratio = 0.9 if m in self.losing or m > self.most.get(job.kernel.cubin_sha256, m) else 1.3
        outcome = Outcome.WRONG if m in self.wrong else Outcome.CORRECT
        return Report(outcome, measurement=Measurement(10, 9, 11, 10 * ratio, ratio, ratio - 0.01, ratio + 0.01))


def kernel(name: str = "k") -> Any:
    return SimpleNamespace(cubin_sha256=name, recipe=SimpleNamespace(constants={"n": 8, "k": 8}))
