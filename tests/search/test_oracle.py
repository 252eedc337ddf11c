"""The oracle passes what is right in any layout, type and epilogue, and catches a wrong edge or a dropped K tail."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.search.oracle import judge
from gemmtune.space.gemm import LAYOUTS, Gemm


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 90), n=st.integers(1, 90), k=st.integers(1, 40), layout=st.sampled_from(LAYOUTS),
    dtype=st.sampled_from(["fp32", "tf32", "fp16", "bf16"]), out=st.sampled_from(["fp32", "fp16", "bf16"]),
    epilogue=st.sampled_from(["identity", "alpha_beta", "bias"]), pad=st.integers(0, 3), seed=st.integers(0, 99),
)  # fmt: skip
def test_right_results_are_right(excerpt, m, n, k, layout, dtype, out, epilogue, pad, seed):
    problem = Gemm(m, n, k, dtype, out, layout, epilogue)
    ldd = 0 if pad == 0 else n + pad
    problem = dataclasses.replace(problem, ldd=ldd)
    judged = judge(problem, excerpt(problem, ("kernel", "cublas"), seed=seed))
    assert set(judged) == {"kernel", "cublas"}
    for one in judged.values():
        assert one.right, one.detail
        assert one.rel_error <= one.error_bound == problem.error_bound().relative


@pytest.mark.parametrize("edge", [(0, 0), (0, -1), (-1, 0), (-1, -1)])
def test_one_wrong_edge_of_one_result_is_found_and_named_by_its_place(excerpt, edge):
    problem = Gemm(300, 200, 64)
    taken = excerpt(problem, ("kernel", "cublaslt16"))
    taken.outputs["cublaslt16"][edge] += np.float32(1.0)
    judged = judge(problem, taken)
    assert judged["kernel"].right
    assert not judged["cublaslt16"].right
    row, column = (0 if edge[0] == 0 else 299), (0 if edge[1] == 0 else 199)
    assert f"row {row}, column {column}" in judged["cublaslt16"].detail


def test_a_dropped_tail_of_k_is_found(excerpt):
    problem = Gemm(64, 64, 256, "fp32")
    taken = excerpt(problem)
    short = {**taken.inputs, "a": taken.inputs["a"].copy()}
    short["a"][:, 255] = 0
    rows = np.arange(len(taken.rows))
    taken.outputs["kernel"][...] = problem.reference(short, rows, np.arange(len(taken.columns)))[0]
    assert not judge(problem, taken)["kernel"].right


@pytest.mark.parametrize("fault", ["unwritten", "infinite", "neighbour"])
def test_unwritten_infinite_and_shifted_results_are_found(excerpt, fault):
    problem = Gemm(128, 128, 32)
    taken = excerpt(problem)
    d = taken.outputs["kernel"]
    if fault == "unwritten":
        d.view(np.uint16)[3, 3] = 0xFFFF
    elif fault == "infinite":
        d[3, 3] = np.inf
    else:
        d[...] = np.roll(d, 1, axis=1)
    assert not judge(problem, taken)["kernel"].right
