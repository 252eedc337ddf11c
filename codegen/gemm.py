"""What every GEMM template is told of its problem: types, compile-time sizes, layout, epilogue.

These are the names that ``codegen/templates/common/gemm.cuh.j2`` reads, besides ``bm bn bk group`` and ``entry``, which
come from the family and the renderer.
"""

from __future__ import annotations

from typing import Any

from gemmtune.space.gemm import Gemm


def gemm_context(problem: Gemm) -> dict[str, Any]:
    """The problem's part of the context.

    M is not in it: kernels take M at run time, so that problems that differ in M alone share one source. For the same
    reason the pitches are not; a family that wants one adds it to its own context.
    """
    return {
        "n": problem.n,
        "k": problem.k,
        "layout": problem.layout,
        "epilogue": problem.epilogue,
        "a_dtype": problem.dtype,
        "b_dtype": problem.b_dtype,
        "out_dtype": problem.out_dtype,
        "a_ctype": problem.a.ctype,
        "b_ctype": problem.b.ctype,
        "out_ctype": problem.out.ctype,
    }
