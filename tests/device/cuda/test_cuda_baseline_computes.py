"""cuBLAS through the baseline against float64, in every type, layout and epilogue, from host threads and streams."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gemmtune.device.baselines import baseline_for
from gemmtune.device.fused import FusedBias
from gemmtune.space.gemm import LAYOUTS, Gemm

pytestmark = pytest.mark.gpu

FUSED_TYPES = [
    ("fp32", "fp32"), ("tf32", "fp32"), ("fp16", "fp16"), ("fp16", "fp32"), ("bf16", "bf16"), ("bf16", "fp32"),
]  # fmt: skip


class OnGpu:
    """The operands of a problem on the GPU, each padded to its pitch; D and the paddings hold NaN.

    Args:
        problem: what they are operands of.
        seed: of their values.
        offsets: elements by which a tensor lies off a 256-byte boundary.
    """

    def __init__(self, problem: Gemm, seed: int = 3, offsets: Mapping[str, int] | None = None) -> None:
        import cupy

        self.problem = problem
        self._offsets = {t.name: (offsets or {}).get(t.name, 0) * t.dtype.bytes for t in problem.tensors()}
        self._buffers = {
            t.name: cupy.zeros(t.shape[0] * t.ld * t.dtype.bytes + self._offsets[t.name], cupy.uint8)
            for t in problem.tensors()
        }
        self.pointers = {name: int(b.data.ptr) + self._offsets[name] for name, b in self._buffers.items()}
        self.fill(seed)

    def fill(self, seed: int) -> None:
        """Other values at the same addresses. Waits for the device before and after."""
        import cupy

        cupy.cuda.runtime.deviceSynchronize()
        self.arrays = self.problem.inputs(seed)
        for t in self.problem.tensors():
            host = np.full((t.shape[0], t.ld), np.nan, np.float32).astype(t.dtype.np)
            if not t.output:
                host[:, : t.shape[1]] = self.arrays[t.name]
            self._buffers[t.name][self._offsets[t.name] :] = cupy.asarray(host.view(np.uint8).ravel())
        cupy.cuda.runtime.deviceSynchronize()

    @property
    def scalars(self) -> dict[str, float]:
        return {name: float(self.arrays[name]) for name in self.problem.epi.scalars}

    def results(self) -> tuple[Any, Any, Any]:
        """D, its float64 reference, and the scale of its errors. Waits for the device."""
        import cupy

        cupy.cuda.runtime.deviceSynchronize()
        out = next(t for t in self.problem.tensors() if t.output)
        raw = self._buffers["d"].get()[self._offsets["d"] :]
        d = np.frombuffer(raw.tobytes(), out.dtype.np).reshape(out.shape[0], out.ld)
        assert np.isnan(d[:, out.shape[1] :].astype(np.float64)).all()  # the padding is nobody's
        reference = self.problem.reference(self.arrays, np.arange(self.problem.m), np.arange(self.problem.n))
        return d[:, : out.shape[1]].astype(np.float64), *reference

    def wrong(self) -> str:
        """What is further off than fp32 sums and one rounding explain, twice over; empty where nothing is."""
        d, reference, scale = self.results()
        bound = self.problem.error_bound()
        excess = np.abs(d - reference) - 2 * (bound.accumulation * scale + bound.rounding * np.abs(reference))
        at = np.unravel_index(int(np.argmax(np.where(np.isnan(excess), np.inf, excess))), excess.shape)
        right = bool(excess[at] <= 0)
        return "" if right else f"{self.problem.key} at {at}: {d[at]} in place of {reference[at]}"


def run(problem: Gemm, stream: Any) -> tuple[Any, Any, Any]:
    operands = OnGpu(problem)
    baseline_for(problem).launch(operands.pointers, stream.ptr, operands.scalars)
    return operands.results()


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

    for epilogue in ("identity", "bias"):
        errors = {}
        for dtype in ("fp32", "tf32"):
            d, reference, scale = run(Gemm(256, 256, 1024, dtype, epilogue=epilogue), cupy.cuda.Stream.null)
            errors[dtype] = float((np.abs(d - reference) / scale).max())
        assert errors["fp32"] < 1e-6
        assert errors["tf32"] > 1e-6


# ------------------------------------------------------------------------------------------------------- a fused bias


@pytest.mark.parametrize(("dtype", "out"), FUSED_TYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bias_is_added_by_the_library(needs_gpu: None, dtype: str, out: str, layout: str) -> None:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    pitched = {"lda": 256, "ldb": 264, "ldd": 272}
    for problem in (
        Gemm(96, 136, 200, dtype, out, layout, "bias"),
        Gemm(96, 136, 200, dtype, out, layout, "bias", **pitched),
        Gemm(16, 512, 4096, dtype, out, layout, "bias"),  # few tiles and a long sum: K is likely split
    ):
        baseline, operands = baseline_for(problem), OnGpu(problem)
        assert isinstance(baseline, FusedBias)
        baseline.launch(operands.pointers, stream.ptr)
        assert operands.wrong() == ""
        assert baseline.is_fused(operands.pointers), problem.key


@pytest.mark.parametrize(("dtype", "out"), FUSED_TYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_odd_sizes_and_addresses_are_right_whichever_way(needs_gpu: None, dtype: str, out: str, layout: str) -> None:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    odd = {"lda": 207, "ldb": 209, "ldd": 211}
    cases: list[tuple[Gemm, dict[str, int]]] = [
        (Gemm(97, 133, 201, dtype, out, layout, "bias"), {}),
        (Gemm(97, 133, 201, dtype, out, layout, "bias", **odd), {}),
        (Gemm(2, 3, 5, dtype, out, layout, "bias"), {}),
        (Gemm(96, 136, 200, dtype, out, layout, "bias"), {"bias": 1}),
        (Gemm(96, 136, 200, dtype, out, layout, "bias"), {"a": 1, "b": 1, "bias": 1, "d": 1}),
        *((Gemm(*sizes, dtype, out, layout, "bias"), {}) for sizes in ((1, 136, 200), (96, 1, 200), (96, 136, 1))),
    ]
    for problem, offsets in cases:
        baseline, operands = baseline_for(problem), OnGpu(problem, offsets=offsets)
        baseline.launch(operands.pointers, stream.ptr)
        d, reference, scale = operands.results()
        bound = problem.error_bound()
        assert (np.abs(d - reference) <= 2 * bound.accumulation * scale + 3 * bound.rounding * scale).all(), problem
        if isinstance(baseline, FusedBias):
            way = "fused" if baseline.is_fused(operands.pointers) else "unfused"
            print(f"{problem.key} {offsets or ''}: {way}")  # noqa: T201 - depends on the library: pytest -rP shows it


@pytest.mark.parametrize(("dtype", "out"), FUSED_TYPES)
def test_a_fused_bias_is_captured_into_a_graph(needs_gpu: None, dtype: str, out: str) -> None:
    import cupy

    problem = Gemm(64, 256, 2048, dtype, out, epilogue="bias")
    baseline, first, second = baseline_for(problem), OnGpu(problem, 1), OnGpu(problem, 2)
    stream = cupy.cuda.Stream(non_blocking=True)
    baseline.launch(first.pointers, stream.ptr)  # what loads and allocates
    stream.synchronize()
    # The strictest mode: any allocation or wait of this process would make the capture fail.
    stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
    baseline.launch(first.pointers, stream.ptr)
    baseline.launch(second.pointers, stream.ptr)
    graph = stream.end_capture()
    for seed in (5, 6):
        first.fill(seed)
        second.fill(seed + 10)
        assert np.isnan(first.results()[0]).all()
        graph.launch(stream)
        stream.synchronize()
        assert first.wrong() == ""
        assert second.wrong() == ""
    assert isinstance(baseline, FusedBias)
    assert baseline.is_fused(first.pointers)


@pytest.mark.parametrize("shared", [True, False], ids=["one stream", "a stream each"])
def test_threads_share_a_fused_baseline(needs_gpu: None, shared: bool) -> None:
    import cupy

    problem = Gemm(64, 256, 2048, epilogue="bias")
    baseline = baseline_for(problem)
    sets = [OnGpu(problem, seed) for seed in range(4)]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in sets]
    failures: list[BaseException] = []

    def work(operands: OnGpu, stream: Any) -> None:
        try:
            cupy.cuda.Device(0).use()
            for _ in range(100):
                baseline.launch(operands.pointers, stream.ptr)
            stream.synchronize()
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=(one, streams[0 if shared else index])) for index, one in enumerate(sets)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [operands.wrong() for operands in sets] == [""] * len(sets)
