"""The calls to cuBLASLt against a column-major matmul in NumPy: layouts, pitches, types and epilogues map rightly."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from host_libraries import HostLt, Placed
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.device.cublas import COMPUTE_32F, COMPUTE_32F_FAST_TF32, RefusedError
from gemmtune.device.cublaslt import REQUESTED, Heuristic, Lt, LtGemm, unsupported
from gemmtune.space.errors import LaunchError, UnsupportedError
from gemmtune.space.gemm import LAYOUTS, Gemm


def run(problem: Gemm, lib: HostLt, seed: int = 0) -> tuple[Any, Any, Any, LtGemm]:
    placed = Placed(problem, seed)
    gemm = LtGemm(problem, placed.scalars, Lt(lib), workspace=(512, 2**25))
    gemm.launch(gemm.heuristics(placed.pointers)[0], placed.pointers, 7)
    return placed.d, *placed.reference(), gemm


@settings(max_examples=100, deadline=None)
@given(
    m=st.integers(1, 9), n=st.integers(1, 9), k=st.integers(1, 9), layout=st.sampled_from(LAYOUTS),
    types=st.sampled_from(
        [("fp32", "fp32"), ("tf32", "fp32"), ("fp16", "fp16"), ("bf16", "bf16"), ("fp16", "fp32"), ("bf16", "fp32")]
    ),
    epilogue=st.sampled_from(["identity", "alpha_beta", "bias"]), pad=st.tuples(*[st.integers(0, 3)] * 3),
    seed=st.integers(0, 2**20),
)  # fmt: skip
def test_it_computes_the_problem(
    m: int, n: int, k: int, layout: str, types: tuple[str, str], epilogue: str, pad: tuple[int, ...], seed: int
) -> None:
    plain = Gemm(m, n, k, types[0], types[1], layout, epilogue)
    ends = (plain.tensors()[0], plain.tensors()[1], plain.tensors()[-1])
    problem = Gemm(m, n, k, *types, layout, epilogue, *(t.ld + extra for t, extra in zip(ends, pad, strict=True)))
    lib = HostLt()
    got, reference, scale, gemm = run(problem, lib, seed)
    bound = problem.error_bound()
    assert (np.abs(got - reference) <= bound.accumulation * scale + bound.rounding * np.abs(reference) + 2.0**-24).all()
    assert lib.computes == [COMPUTE_32F_FAST_TF32 if types[0] == "tf32" else COMPUTE_32F]
    gemm.close()
    assert len(lib.alive) == 1  # the handle, which others use too
    gemm.close()
    del gemm  # which gives back nothing twice


def test_the_first_16_that_can_be_used_are_asked_for_with_the_workspace_and_fp32_reductions() -> None:
    lib = HostLt(usable=12)
    gemm = LtGemm(Gemm(8, 8, 8), None, Lt(lib), workspace=(512, 2**25))
    addresses = {"a": 0x1000, "b": 0x1010, "d": 0x1002}
    found = gemm.heuristics(addresses)
    assert [one.algorithm[0] for one in found] == list(range(12))
    assert lib.preference == {1: 2**25, 3: 3, 5: 16, 6: 256, 7: 2, 8: 2}
    lib.usable = 99
    assert len(gemm.heuristics(addresses)) == REQUESTED
    small = LtGemm(Gemm(8, 8, 8), None, Lt(lib), workspace=(512, 3000))
    assert len(small.heuristics(addresses)) == 3  # the others want more workspace


def test_a_bias_is_pointed_at_before_the_heuristics_are_asked_and_its_alignment_bounds_that_of_d() -> None:
    lib = HostLt()
    gemm = LtGemm(Gemm(8, 8, 8, "bf16", "fp32", epilogue="bias"), None, Lt(lib), workspace=(512, 2**25))
    addresses = {"a": 0x1000, "b": 0x2000, "d": 0x3000, "bias": 0x4004}
    gemm.heuristics(addresses, 1, sums_in_fp32=True)
    assert lib.seen == {3: 1, 4: 0, 7: 4, 8: 0x4004, 26: 0}  # transposed B, N, bias, its address, fp32
    assert lib.preference == {1: 2**25, 3: 3, 5: 256, 6: 256, 7: 256, 8: 4}
    half = LtGemm(Gemm(8, 8, 8, "bf16", epilogue="bias"), None, Lt(lib), workspace=(512, 2**25))
    half.heuristics(addresses, 1, sums_in_fp32=True)
    assert (lib.seen[26], lib.preference[3]) == (14, 2)  # bf16, in which no parts may be added up


def test_the_structure_is_as_large_as_the_librarys() -> None:
    assert ctypes.sizeof(Heuristic) == 96


@pytest.mark.parametrize(
    ("problem", "words"),
    [(Gemm(8, 8, 8, "fp16", b_dtype="bf16"), "operands of one type"), (Gemm(8, 8, 8, "fp32", "bf16"), "write bf16")],
)
def test_types_it_does_not_combine_are_refused(problem: Gemm, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        LtGemm(problem, None, Lt(HostLt()), workspace=(512, 1))
    assert unsupported(Gemm(8, 8, 8)) is None


def test_refusals_are_launch_errors() -> None:
    with pytest.raises(RefusedError, match=r"know no algorithm for gemm 8x8x8"):
        run(Gemm(8, 8, 8), HostLt(algorithms=0))
    with pytest.raises(RefusedError, match=r"cublasLtMatmul of gemm 8x8x8.*not supported"):
        run(Gemm(8, 8, 8), HostLt(statuses={"matmul": 15}))
    with pytest.raises(RefusedError, match=r"GetHeuristic of gemm 8x8x8.*invalid value"):
        run(Gemm(8, 8, 8), HostLt(statuses={"heuristics": 7}))
    with pytest.raises(LaunchError, match=r"cublasLtMatmul of gemm 8x8x8.*execution failed") as failed:
        run(Gemm(8, 8, 8), HostLt(statuses={"matmul": 13}))
    assert not isinstance(failed.value, RefusedError)
