"""cuBLAS through the baseline against float64, in every type, layout and epilogue, from host threads and streams."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from gemmtune.device.baselines import baseline_for
from gemmtune.space.gemm import LAYOUTS, Gemm

pytestmark = pytest.mark.gpu


def run(problem: Gemm, stream: Any, seed: int = 3) -> tuple[Any, Any, Any]:
    import cupy

    arrays = problem.inputs(seed)
    pointers, buffers = {}, {}
    for t in problem.tensors():
        host = np.full((t.shape[0], t.ld), np.nan, np.float32).astype(t.dtype.np)
        if not t.output:
            host[:, : t.shape[1]] = arrays[t.name]
        buffers[t.name] = cupy.asarray(host.view(np.uint8))
        pointers[t.name] = int(buffers[t.name].data.ptr)
    scalars = {name: float(arrays[name]) for name in problem.epi.scalars}
    cupy.cuda.runtime.deviceSynchronize()
    baseline_for(problem).launch(pointers, stream.ptr, scalars)
    stream.synchronize()
    out = next(t for t in problem.tensors() if t.output)
    d = buffers["d"].get().view(out.dtype.np)[:, : out.shape[1]].astype(np.float64)
    reference, scale = problem.reference(arrays, np.arange(problem.m), np.arange(problem.n))
    return d, reference, scale


@pytest.mark.parametrize(("dtype", "layout"), list(itertools.product(["fp32", "tf32", "fp16", "bf16"], LAYOUTS)))
def test_the_baseline_agrees_with_float64(needs_gpu: None, dtype: str, layout: str) -> None:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    for epilogue, out, b_dtype in itertools.product(
        ["identity", "alpha_beta", "bias"], ["fp32", "fp16", "bf16"], ["", "fp32", "bf16"]
    ):
        problem = Gemm(67, 72, 136, dtype, out, layout, epilogue, lda=144, ldb=152, ldd=80, b_dtype=b_dtype)
        d, reference, scale = run(problem, stream)
        bound = problem.error_bound()
        slack = 2 * bound.accumulation * scale + 3 * bound.rounding * scale  # unfused: rounded more than once
        assert (np.abs(d - reference) <= slack).all(), problem


def test_fp32_is_not_tf32_and_tf32_is(needs_gpu: None) -> None:
    import cupy

    errors = {}
    for dtype in ("fp32", "tf32"):
        d, reference, scale = run(Gemm(256, 256, 1024, dtype), cupy.cuda.Stream.null)
        errors[dtype] = float((np.abs(d - reference) / scale).max())
    assert errors["fp32"] < 1e-6
    assert errors["tf32"] > 1e-6
