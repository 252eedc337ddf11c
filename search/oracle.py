"""The oracle: results judged on the CPU, in float64, by the problem's own NumPy reference.

A GPU library is no oracle: a split-K path that drops the tail of K is on record. What a kernel, the baseline and every
peer left in their outputs is compared here, at a random sample of rows and columns plus every edge and places where
tiles meet, with the product of the very inputs that lay in the buffers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from gemmtune.device.base import Excerpt
from gemmtune.device.verify import Limits, compare
from gemmtune.space.gemm import Gemm
from gemmtune.space.problem import Problem

KERNEL = "kernel"
"""The name of our own kernel's output in an excerpt."""


@dataclass(frozen=True)
class Judgement:
    """``rel_error`` = max |d - ref| / scale; ``error_bound`` what it may be; ``detail`` is empty where all is right."""

    rel_error: float
    error_bound: float
    compared: int
    detail: str = ""

    @property
    def right(self) -> bool:
        """Whether every compared element is within the bound."""
        return not self.detail


def judge(problem: Problem, excerpt: Excerpt) -> dict[str, Judgement]:
    """A judgement of every output of ``excerpt``."""
    rows, columns = len(excerpt.rows), len(excerpt.columns)
    small = _cut(problem, rows, columns)
    reference, scale = small.reference(excerpt.inputs, np.arange(rows), np.arange(columns))
    bound = problem.error_bound()
    limits = Limits.of(next(t for t in problem.tensors() if t.output).dtype)
    found = {}
    for name, d in excerpt.outputs.items():
        said = compare(d, reference, scale, bound, rows=excerpt.rows, columns=excerpt.columns, limits=limits)
        found[name] = Judgement(said.rel_error, bound.relative, said.compared, "" if said.passed else said.detail)
    return found


def _cut(problem: Problem, rows: int, columns: int) -> Problem:
    """The problem of an excerpt: as many rows and columns, the same K, packed."""
    if isinstance(problem, Gemm):
        kept = {f.name: getattr(problem, f.name) for f in fields(problem)}
        return Gemm(**{**kept, "m": rows, "n": columns, "lda": 0, "ldb": 0, "ldd": 0})
    return problem.with_axes(m=rows, n=columns)
