"""A simple right kernel with room for planted faults, and the engines that must find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gemmtune.codegen.kernel import CompiledKernel, KernelSource
from gemmtune.codegen.nvrtc import compile_kernel
from gemmtune.device.base import Job
from gemmtune.device.toolchain import device_count
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ToolchainError
from gemmtune.space.families import gemm_recipe
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu
from gemmtune.space.recipe import LaunchRecipe

CTYPES = {"fp32": "float", "tf32": "float", "fp16": "hw::f16", "bf16": "hw::bf16"}


@pytest.fixture(scope="session", autouse=True)
def needs_gpu() -> None:
    try:
        device_count()
    except ToolchainError as error:
        pytest.skip(str(error))


def source_text(problem: Gemm, *, k_limit: str, before: str, spoil: str, after: str, globals_: str) -> str:
    p = problem
    a = "(i64)row * lda + k" if p.layout[0] == "n" else "(i64)k * lda + row"
    b = "(i64)k * ldb + column" if p.layout[1] == "n" else "(i64)column * ldb + k"
    extra, epilogue = "", ""
    if p.epi.reads_c:
        extra += ", const TD* c, i64 ldc, float alpha, float beta"
        epilogue = "acc = alpha * acc + beta * hw::to_float(c[(i64)row * ldc + column]);"
    if p.epi.reads_bias:
        extra += ", const TD* bias"
        epilogue = "acc += hw::to_float(bias[column]);"
    return f"""
#include "gemmtune/hw.cuh"
typedef {CTYPES[p.dtype]} TA; typedef {CTYPES[p.b_dtype]} TB; typedef {CTYPES[p.out_dtype]} TD;
constexpr int N = {p.n}, K = {p.k}, TILES = (N + 15) / 16;
{globals_}
extern "C" __global__ void probe(const TA* a, const TB* b, TD* d, int m, i64 lda, i64 ldb, i64 ldd{extra},
                                 float* workspace, u32* counters) {{
  const int row = blockIdx.x / TILES * 16 + threadIdx.x / 16, column = blockIdx.x % TILES * 16 + threadIdx.x % 16;
  const bool first = row == 0 && column == 0, last = row == m - 1 && column == N - 1;
  {before}
  if (row >= m || column >= N) return;
  float acc = 0.f;
  for (int k = 0; k < {k_limit}; k++) acc += hw::to_float(a[{a}]) * hw::to_float(b[{b}]);
  {epilogue}
  {spoil}
  d[(i64)row * ldd + column] = hw::from_float<TD>(acc);
  {after}
}}
"""


Planted = Callable[..., Job]


@pytest.fixture(scope="session")
def gpu(needs_gpu: None) -> Gpu:
    from gemmtune.device.cuda.info import gpu_of

    return gpu_of(0)


@pytest.fixture(scope="session")
def planted(gpu: Gpu) -> Planted:
    """Makes a job of the probe kernel, with faults as C++ text at the places :func:`source_text` names."""

    def make(
        problem: Gemm,
        *,
        k_limit: str = "K",
        before: str = "",
        spoil: str = "",
        after: str = "",
        globals_: str = "",
        recipe: dict[str, Any] | None = None,
        **job: Any,
    ) -> Job:
        text = source_text(problem, k_limit=k_limit, before=before, spoil=spoil, after=after, globals_=globals_)
        plan: dict[str, Any] = {
            "entry": "probe", "block": (256, 1, 1), "grid": gemm_recipe.grid(16, 16), "workspace": "1000",
            "counters": "64", "arguments": gemm_recipe.arguments(problem, workspace=True),
            "tile": gemm_recipe.tile(16, 16, 1), "constants": {"n": problem.n, "k": problem.k},
        }  # fmt: skip
        made = LaunchRecipe(**{**plan, **(recipe or {})})
        source = KernelSource(Configuration.of("probe", {}), "probe", text, "", made)
        kernel: CompiledKernel = compile_kernel(source, gpu.arch)
        return Job(problem, kernel, **{"seed": 1, **job})

    return make


@pytest.fixture(scope="module")
def engine(needs_gpu: None) -> Iterator[Any]:
    """An engine in this process, for faults that leave the context alone."""
    from gemmtune.device.cuda.engine import CudaEngine

    engine = CudaEngine(0)
    yield engine
    engine.close()
