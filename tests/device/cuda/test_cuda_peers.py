"""Peers on a real GPU: cuBLASLt's best of 16 is right in every layout and type, overlapped graphs too, and is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gemmtune.device.base import Job, Outcome
from gemmtune.device.verify import Limits, compare
from gemmtune.space.gemm import LAYOUTS, Gemm

pytestmark = pytest.mark.gpu

PROBLEMS = [
    *(Gemm(96, 136, 200, "bf16", layout=layout, lda=208, ldb=208, ldd=144) for layout in LAYOUTS),
    Gemm(96, 136, 200, "fp16", "fp32"),
    Gemm(97, 133, 201, "fp32"),
    Gemm(96, 136, 200, "tf32", layout="nn"),
    Gemm(96, 136, 200, epilogue="bias"),
    Gemm(96, 136, 200, epilogue="alpha_beta"),
]


def judged(problem: Gemm, report: Any) -> None:
    """Every result of the report's excerpt is right, the peer's among them."""
    taken = report.excerpt
    assert set(taken.outputs) >= {"kernel", "cublas", "cublaslt16"}
    rows, columns = np.arange(len(taken.rows)), np.arange(len(taken.columns))
    small = Gemm(len(rows), len(columns), problem.k, problem.dtype, problem.out_dtype, problem.layout, problem.epilogue)
    reference, scale = small.reference(taken.inputs, rows, columns)
    for name in ("kernel", "cublaslt16"):
        said = compare(taken.outputs[name], reference, scale, problem.error_bound(), limits=Limits.of(problem.out))
        assert said.passed, (name, said.detail)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key.replace(" ", "-"))
def test_the_best_of_16_is_right_and_timed(engine: Any, planted: Callable[..., Job], problem: Gemm) -> None:
    (report,) = engine.compare([planted(problem, peers=("cublaslt16",), excerpt=96, effort="final")])
    assert report.outcome in (Outcome.CORRECT, Outcome.UNSTABLE), report.detail
    assert report.absent == {}
    assert report.peers["cublaslt16"] > 0
    judged(problem, report)


def test_launches_overlap_where_asked_for_and_results_stay_right(engine: Any, planted: Callable[..., Job]) -> None:
    problem = Gemm(64, 128, 256)
    job = planted(problem, peers=("cublaslt16",), excerpt=64, effort="final", overlap=True)
    (report,) = engine.compare([job])
    assert report.outcome in (Outcome.CORRECT, Outcome.UNSTABLE), report.detail
    judged(problem, report)


def test_a_graph_of_overlapping_launches_has_programmatic_edges() -> None:
    import cupy

    from gemmtune.device.cuda.overlap import OverlappedGraph

    stream = cupy.cuda.Stream(non_blocking=True)
    code = 'extern "C" __global__ void add(int* x) { x[0] += 1; }'
    add = cupy.RawModule(code=code).get_function("add")
    total = cupy.zeros(1, cupy.int32)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        stream.begin_capture()
        for _ in range(5):
            add((1,), (1,), (total,))
        graph = OverlappedGraph(stream.end_capture(), 5)
    assert graph.changed == 4
    graph.upload(stream)
    graph.launch(stream)
    stream.synchronize()
    assert 1 <= int(total[0]) <= 5  # the launches do not wait for each other's writes


def test_a_peer_that_is_not_installed_is_absent(engine: Any, planted: Callable[..., Job]) -> None:
    (report,) = engine.compare([planted(Gemm(64, 64, 64, "fp16"), peers=("deepgemm",), effort="final")])
    assert list(report.absent) == ["deepgemm"]
    assert report.excerpt is None
