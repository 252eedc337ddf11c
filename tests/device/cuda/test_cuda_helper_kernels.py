"""The verifier's own kernels against NumPy: the same law, the same values, every byte watched."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gemmtune.device import verify
from gemmtune.device.verify import POISON, Limits
from gemmtune.space.dtypes import DTYPES
from gemmtune.space.problem import ErrorBound

pytestmark = pytest.mark.gpu
BOUND = ErrorBound(1e-4, 2.0**-8)


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("case", ["right", "off", "special", "poisoned", "overflow", "tiny"])
def test_the_law_on_the_gpu_is_the_law_on_the_cpu(needs_gpu: None, name: str, case: str) -> None:
    import cupy

    from gemmtune.device.cuda.helpers import Axis, StatsBuffer

    dtype, limits = DTYPES[name], Limits.of(DTYPES[name])
    rng = np.random.default_rng(5)
    reference = rng.standard_normal((37, 53))
    if case == "overflow":
        reference = reference * limits.largest * 2 if limits.largest < 1e300 else reference
    if case == "tiny":
        reference = reference * limits.tiny * 4
    scale = np.abs(reference) * 3
    with np.errstate(over="ignore"):
        d = reference.astype(np.float32).astype(dtype.np)
    if case == "off":
        d[5, 7] += dtype.np.type(1)
        d[36, 52] += dtype.np.type(2)
    if case == "special":
        reference[3, 4], reference[6, 1], reference[9, 9] = math.nan, math.inf, -math.inf
        scale[3, 4] = scale[6, 1] = scale[9, 9] = math.inf
        d[3, 4], d[6, 1], d[9, 9] = math.nan, math.inf, math.inf
    if case == "poisoned":
        verify.poison(d[11])
    expected = verify.compare(d, reference, scale, BOUND, limits=limits)
    stats = StatsBuffer()
    stats.reset()
    device = cupy.asarray(d.view(np.uint8))
    stats.compare(
        int(device.data.ptr),
        dtype.numpy,
        53,
        Axis(37),
        Axis(53),
        cupy.asarray(reference),
        cupy.asarray(scale),
        BOUND,
        limits,
    )
    got = stats.read()
    assert got.passed == expected.passed
    assert got.mismatches == expected.mismatches
    assert got.relative == pytest.approx(expected.rel_error, rel=1e-9)
    assert got.excess == pytest.approx(expected.excess, rel=1e-9)
    assert got.unwritten == (53 if case == "poisoned" else 0)
    if case == "off":
        assert divmod(got.first, 53) == (5, 7)


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_random_inputs_are_normal_differ_by_seed_and_leave_padding(needs_gpu: None, name: str) -> None:
    import cupy

    from gemmtune.device.cuda.helpers import fill_normal

    dtype = DTYPES[name]

    def drawn(seed: int) -> Any:
        buffer = cupy.full(1000 * 210 * dtype.bytes, POISON, np.uint8)
        fill_normal(int(buffer.data.ptr), dtype.numpy, (1000, 200), 210, seed)
        return buffer.get().view(dtype.np).reshape(1000, 210)

    one = drawn(1)
    values = one[:, :200].astype(np.float64)
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02
    assert abs((values**4).mean() - 3) < 0.2
    assert verify.unwritten(np.ascontiguousarray(one[:, 200:])) == 10_000
    assert (one[:, :200] == drawn(1)[:, :200]).all()
    assert (one[:, :200] == drawn(2)[:, :200]).mean() < 0.05


@pytest.mark.parametrize("where", ["before", "after", "inside"])
def test_guard_zones_on_the_gpu(needs_gpu: None, where: str) -> None:
    import cupy

    from gemmtune.device.cuda.helpers import StatsBuffer
    from gemmtune.device.cuda.operands import GuardedMemory

    memory, stats = GuardedMemory(1001), StatsBuffer()
    stats.reset()
    memory.count_damage(stats)
    assert stats.read().damage == 0
    address = {"before": memory.address - 1, "after": memory.address + 1001, "inside": memory.address + 1000}[where]
    cupy.cuda.runtime.memset(address, 0, 1)
    memory.count_damage(stats)
    assert stats.read().damage == (0 if where == "inside" else 1)
