"""Kernels of the hopper family pass on the GPU: with every cluster, and a seeded sample of the whole space."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from gemmtune.codegen.nvrtc import compile_kernel
from gemmtune.codegen.render import render
from gemmtune.device.base import Job, Outcome
from gemmtune.space.configuration import Configuration
from gemmtune.space.families import family
from gemmtune.space.families.hopper_rules import CLUSTERS
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.space import Space

pytestmark = pytest.mark.gpu
HOPPER, H200 = family("hopper"), gpu("h200")
PROBLEMS = [Gemm(1000, 264, 1096), Gemm(200, 1032, 1096, layout="tn"), Gemm(56, 1032, 1096, epilogue="bias")]


@cache
def _space(problem: Gemm) -> Space:
    return Space(problem, H200, [HOPPER])


def sample(problem: Gemm, count: int, cluster: str | None = None) -> list[Configuration]:
    """Valid configurations of ``problem``, where wanted of one kind of cluster; none where it has none."""
    space = _space(problem)
    numbers = np.random.default_rng(3).integers(len(space), size=20_000)
    drawn = (space[int(i)] for i in numbers)
    return [c for c, _ in zip((c for c in drawn if cluster in (None, c["cluster"])), range(count), strict=False)]


def check(engine: Any, problem: Gemm, configuration: Configuration) -> None:
    if engine.gpu.capability != (9, 0):
        pytest.skip(f"needs compute capability 9.0, and {engine.gpu.name} is not")
    kernel = compile_kernel(render(problem, configuration, HOPPER), engine.gpu.arch)
    report = engine.run(Job(problem, kernel, seed=1, measure=False))
    assert report.outcome is Outcome.CORRECT, f"{problem.key} {configuration}: {report.detail}"


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_every_cluster_is_right(engine: Any, cluster: str) -> None:
    found = [(problem, c) for problem in PROBLEMS for c in sample(problem, 3, cluster)]
    assert found
    for problem, configuration in found:
        check(engine, problem, configuration)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: str(p.key))
def test_a_seeded_sample_is_right(engine: Any, problem: Gemm) -> None:
    for configuration in sample(problem, 16):
        check(engine, problem, configuration)
