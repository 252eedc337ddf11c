"""The launch path on a real GPU: scratch, reuse on other arrays, capture, and the breakdown of its host time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gemmtune.device.base import Job
from gemmtune.space.gemm import Gemm

pytestmark = pytest.mark.gpu


def test_one_prepared_launch_serves_many_arrays_and_graphs(planted: Callable[..., Job]) -> None:
    import cupy

    from gemmtune.device.launch import LoadedKernel
    from gemmtune.device.scratch import StreamScratch

    problem = Gemm(40, 48, 32, "fp32")
    job = planted(problem)
    stream = cupy.cuda.Stream(non_blocking=True)
    scratch = StreamScratch(stream.ptr)
    kernel = LoadedKernel(job.kernel.cubin, job.kernel.recipe)
    sets = []
    for seed in range(3):
        host = problem.inputs(seed)
        d = cupy.full((40, 48), np.nan, np.float32)
        sets.append((cupy.asarray(host["a"]), cupy.asarray(host["b"]), d, host["a"] @ host["b"].T))
    cupy.cuda.runtime.deviceSynchronize()
    addresses = [[int(x.data.ptr) for x in s[:3]] for s in sets]
    prepared = kernel.prepare(problem.environment(), dict(zip("abd", addresses[0], strict=True)))
    for each in addresses:
        prepared.launch_at(each, stream.ptr, scratch)
    stream.synchronize()
    for _, _, d, right in sets:
        np.testing.assert_allclose(d.get(), right, rtol=1e-4, atol=1e-4)
        d.fill(np.nan)
    cupy.cuda.runtime.deviceSynchronize()
    stream.begin_capture()
    for each in addresses:
        prepared.launch_at(each, stream.ptr, scratch)
    graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    for _, _, d, right in sets:
        np.testing.assert_allclose(d.get(), right, rtol=1e-4, atol=1e-4)
    assert scratch.nbytes > 0


def test_the_breakdown_of_host_time_names_its_parts(planted: Callable[..., Job]) -> None:
    import cupy

    from gemmtune.device.launch import LoadedKernel
    from gemmtune.device.overhead import launch_breakdown
    from gemmtune.device.scratch import StreamScratch

    problem = Gemm(16, 16, 16, "fp32")
    job = planted(problem)
    kernel = LoadedKernel(job.kernel.cubin, job.kernel.recipe)
    arrays = {name: cupy.zeros((16, 16), np.float32) for name in "abd"}
    pointers = {name: int(x.data.ptr) for name, x in arrays.items()}
    parts = launch_breakdown(kernel, problem.environment(), pointers, 0, StreamScratch(0), calls=200)
    assert set(parts) == {"prepare", "rebind", "launch", "driver"}
    assert all(us > 0 for us in parts.values())
    assert kernel.attributes()["registers"] > 0


def test_scratch_grows_on_the_device_and_counters_are_zero(needs_gpu: None) -> None:
    import cupy

    from gemmtune.device.scratch import ScratchPool

    scratch = ScratchPool(limit=2**26).of(0, 0)
    first = scratch.reserve(2**20, 64)
    second = scratch.reserve(2**22, 64)
    assert first[1] == second[1]
    assert first[0] != second[0]
    host = np.ones(64, np.uint8)
    cupy.cuda.runtime.memcpy(host.ctypes.data, second[1], 64, cupy.cuda.runtime.memcpyDeviceToHost)
    assert not host.any()
