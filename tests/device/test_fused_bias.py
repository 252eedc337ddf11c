"""The baseline of a product with a bias: one call of cuBLASLt, what it keeps for later ones, and when it gives way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_libraries import HostBlas, HostLt, HostMemory, Placed
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.device import cublas, cublaslt, fused
from gemmtune.device.baselines import CublasGemm, baseline_for
from gemmtune.device.cublas import COMPUTE_32F, COMPUTE_32F_FAST_TF32, WORKSPACE
from gemmtune.device.fused import FusedBias, fusible
from gemmtune.space.errors import LaunchError
from gemmtune.space.gemm import LAYOUTS, Gemm

FUSED_TYPES = [
    ("fp32", "fp32"), ("tf32", "fp32"), ("fp16", "fp16"), ("fp16", "fp32"), ("bf16", "bf16"), ("bf16", "fp32"),
]  # fmt: skip
PROBLEM = Gemm(6, 8, 5, "bf16", epilogue="bias")


class Machine:
    """Devices with cuBLASLt, and a GemmEx way that only notes that it was taken."""

    name = "unfused"

    def __init__(self) -> None:
        self.device = 0
        self.lib = HostLt()
        self.allocated: list[int] = []
        self.unfused: list[tuple[int, int]] = []

    def launch(self, pointers: Mapping[str, int], stream: int = 0, scalars: Mapping[str, float] | None = None) -> None:
        self.unfused.append((pointers["d"], stream))

    def allocate(self, size: int) -> HostMemory:
        self.allocated.append(size)
        return HostMemory(16)

    def baseline(self, problem: Gemm = PROBLEM) -> FusedBias:
        return FusedBias(problem, self)

    def install(self, patch: pytest.MonkeyPatch) -> Machine:
        cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: self.device)))
        for module in (cublas, cublaslt, fused):
            patch.setattr(module, "require_cupy", lambda: cupy)
        for module in (cublas, cublaslt):
            patch.setattr(module, "allocate", self.allocate)
        patch.setattr(cublaslt, "library", lambda: self.lib)
        patch.setattr(cublas, "_workspaces", {})
        patch.setattr(cublaslt, "_handles", {})
        return self


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine().install(monkeypatch)


def close(placed: Placed) -> bool:
    reference, scale = placed.reference()
    bound = placed.problem.error_bound()
    allowed = bound.accumulation * scale + bound.rounding * np.abs(reference) + 2.0**-24
    return bool((np.abs(placed.d - reference) <= allowed).all())


@given(
    m=st.integers(2, 9), n=st.integers(2, 9), k=st.integers(2, 9), layout=st.sampled_from(LAYOUTS),
    types=st.sampled_from(FUSED_TYPES), pad=st.tuples(*[st.integers(0, 3)] * 3),
    off=st.tuples(*[st.sampled_from([0, 4, 32])] * 4), seed=st.integers(0, 2**20),
)  # fmt: skip
def test_one_call_computes_the_problem(
    m: int, n: int, k: int, layout: str, types: tuple[str, str], pad: tuple[int, ...], off: tuple[int, ...], seed: int
) -> None:
    plain = Gemm(m, n, k, *types, layout, "bias")
    ends = (plain.tensors()[0], plain.tensors()[1], plain.tensors()[-1])
    problem = Gemm(m, n, k, *types, layout, "bias", *(t.ld + extra for t, extra in zip(ends, pad, strict=True)))
    placed = Placed(problem, seed, dict(zip(("a", "b", "bias", "d"), off, strict=True)))
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine().install(patch)
        machine.baseline(problem).launch(placed.pointers, 7)
    assert close(placed)
    assert machine.lib.calls == ["heuristics", "matmul"]
    assert machine.lib.chosen == [0]  # what the heuristics put first
    assert machine.lib.computes == [COMPUTE_32F_FAST_TF32 if types[0] == "tf32" else COMPUTE_32F]
    assert machine.unfused == []
    padding = placed.paddings("d")
    assert padding.size == m * problem.ldd - m * n if problem.ldd else padding.size == 0
    assert np.isnan(padding.astype(np.float64)).all()


def test_later_launches_make_and_allocate_nothing(machine: Machine) -> None:
    baseline, placed = machine.baseline(), [Placed(PROBLEM, seed) for seed in range(3)]
    baseline.launch(placed[0].pointers, 7)
    alive = set(machine.lib.alive)
    for one in placed:
        one.views["d"][...] = 0
        baseline.launch(one.pointers, 7)  # with another bias each, too
    assert all(close(one) for one in placed)
    assert machine.lib.alive == alive
    assert machine.allocated == [WORKSPACE]
    assert machine.lib.calls == ["heuristics", *["matmul"] * 4]


def test_each_stream_has_a_workspace_of_its_own_which_all_products_on_it_share(machine: Machine) -> None:
    baseline, other = machine.baseline(), machine.baseline(Gemm(4, 4, 4, "fp32", epilogue="bias"))
    placed, small = Placed(PROBLEM), Placed(Gemm(4, 4, 4, "fp32", epilogue="bias"))
    for stream in (7, 8, 7):
        baseline.launch(placed.pointers, stream)
        other.launch(small.pointers, stream)
    assert machine.allocated == [WORKSPACE] * 2
    assert [stream for stream, _, _ in machine.lib.matmuls] == [7, 7, 8, 8, 7, 7]
    assert len({(stream, address) for stream, address, _ in machine.lib.matmuls}) == 2
    assert len({address for _, address, _ in machine.lib.matmuls}) == 2
    assert {size for _, _, size in machine.lib.matmuls} == {WORKSPACE}
    assert machine.lib.calls.count("heuristics") == 2  # once a product


def test_a_cublas_handle_shares_its_streams_workspace(machine: Machine) -> None:
    blas = HostBlas()
    machine.baseline().launch(Placed(PROBLEM).pointers, 7)
    cublas.Handle(blas, 7)
    assert (blas.workspace or (0, 0))[0] == machine.lib.matmuls[0][1]
    assert machine.allocated == [WORKSPACE]


def test_each_device_has_one_handle_and_is_asked_by_itself(machine: Machine) -> None:
    baseline, placed = machine.baseline(), Placed(PROBLEM)
    for machine.device in (0, 1, 0):
        baseline.launch(placed.pointers, 7)
        machine.baseline(Gemm(4, 4, 4, epilogue="bias")).launch(Placed(Gemm(4, 4, 4, epilogue="bias")).pointers, 7)
    assert machine.lib.created.count("handle") == 2
    assert machine.allocated == [WORKSPACE] * 2
    assert machine.lib.calls.count("heuristics") == 2 + 3


def test_addresses_that_are_aligned_otherwise_are_asked_about_anew(machine: Machine) -> None:
    baseline = machine.baseline()
    well, again, badly = Placed(PROBLEM), Placed(PROBLEM, 1, {"a": 256}), Placed(PROBLEM, 2, {"bias": 2, "a": 16})
    for placed in (well, again, badly, well, badly):
        baseline.launch(placed.pointers, 7)
    assert machine.lib.calls.count("heuristics") == 2
    assert machine.lib.preference[6] == 16  # our A is the library's B
    assert machine.lib.preference[8] == 2  # the bias's
    assert close(well)
    assert close(badly)


@pytest.mark.parametrize(
    "lib",
    [
        HostLt(algorithms=0), HostLt(usable=0), HostLt(statuses={"heuristics": 15}), HostLt(statuses={"heuristics": 7}),
        HostLt(statuses={"matmul": 15}), HostLt(statuses={"layout": 7}),
    ],
    ids=["none known", "none usable", "not supported", "invalid value", "matmul not supported", "layout refused"],
)  # fmt: skip
def test_what_the_library_refuses_is_computed_unfused_from_then_on(machine: Machine, lib: HostLt) -> None:
    machine.lib = lib
    baseline, placed = machine.baseline(), Placed(PROBLEM)
    baseline.launch(placed.pointers, 7)
    asked = list(lib.calls)
    assert not baseline.is_fused(placed.pointers)
    lib.statuses, lib.algorithms = {}, 20  # it is not asked again
    for stream in (7, 8):
        baseline.launch(placed.pointers, stream)
    assert lib.calls == asked
    assert machine.unfused == [(placed.pointers["d"], stream) for stream in (7, 7, 8)]


def test_what_is_refused_at_one_alignment_is_fused_at_another(machine: Machine) -> None:
    baseline = machine.baseline()
    well, badly = Placed(PROBLEM), Placed(PROBLEM, 1, {"bias": 2})
    machine.lib.statuses = {"matmul": 15}
    baseline.launch(badly.pointers, 7)
    machine.lib.statuses = {}
    for placed in (well, badly, well):
        baseline.launch(placed.pointers, 7)
    assert (baseline.is_fused(well.pointers), baseline.is_fused(badly.pointers)) == (True, False)
    assert machine.unfused == [(badly.pointers["d"], 7)] * 2
    assert close(well)


def test_failures_of_other_kinds_are_errors_and_nothing_is_concluded_from_them(machine: Machine) -> None:
    baseline, placed = machine.baseline(), Placed(PROBLEM)
    for call in ("heuristics", "matmul"):
        machine.lib.statuses = {call: 14}
        with pytest.raises(LaunchError, match=r"of gemm 6x8x5 bf16 nt epilogue=bias: internal error"):
            baseline.launch(placed.pointers, 7)
    assert machine.unfused == []
    machine.lib.statuses = {}
    baseline.launch(placed.pointers, 7)
    assert close(placed)
    with pytest.raises(LaunchError, match="gemm 6x8x5 bf16 nt epilogue=bias needs the address of 'bias'"):
        baseline.launch({"a": 256, "b": 256, "d": 256})


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_threads_on_one_stream_keep_their_biases_apart(machine: Machine) -> None:
    baseline = machine.baseline()
    sets = [Placed(PROBLEM, seed) for seed in range(3)]
    wrong: list[Any] = []

    def work(placed: Placed) -> None:
        for _ in range(200):
            placed.views["d"][...] = 0
            baseline.launch(placed.pointers, 7)
            if not close(placed):
                wrong.append(placed)

    threads = [threading.Thread(target=work, args=(placed,)) for placed in sets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(("dtype", "out"), FUSED_TYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_baseline_of_a_bias_is_fused(dtype: str, out: str, layout: str) -> None:
    baseline = baseline_for(Gemm(3, 5, 7, dtype, out, layout, "bias", lda=11, ldb=13, ldd=9))
    assert isinstance(baseline, FusedBias)
    assert baseline.name == "cublas"


@pytest.mark.parametrize(
    "problem",
    [
        Gemm(4, 4, 4), Gemm(4, 4, 4, epilogue="alpha_beta"),  # nothing to fuse, or GemmEx does it
        Gemm(4, 4, 4, "fp16", "bf16", epilogue="bias"), Gemm(4, 4, 4, "fp32", "bf16", epilogue="bias"),
        Gemm(4, 4, 4, "bf16", b_dtype="fp16", epilogue="bias"),
        *(Gemm(*sizes, epilogue="bias") for sizes in ((1, 4, 4), (4, 1, 4), (4, 4, 1))),
    ],
    ids=lambda problem: problem.key,
)  # fmt: skip
def test_what_torch_does_not_fuse_either_is_not(problem: Gemm) -> None:
    assert not fusible(problem)
    baseline = baseline_for(problem)
    assert isinstance(baseline, CublasGemm)
    assert baseline.name == "cublas"
