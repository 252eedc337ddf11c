"""Hopper's intrinsics: one kernel calls each of them, NVRTC compiles it, and the SASS shows the instruction meant."""

from __future__ import annotations

import re

import jinja2
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with the extra cuda13 or cuda12")

from gemmtune.codegen.kernel import CompiledKernel, KernelSource
from gemmtune.codegen.nvrtc import compile_kernel, supported_archs
from gemmtune.codegen.render import INTRINSICS, TEMPLATES
from gemmtune.codegen.sass import disassemble
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import CompileError
from gemmtune.space.recipe import LaunchRecipe, Tile

HEADER = INTRINSICS.with_name("hopper.cuh")
RECIPE = LaunchRecipe("probe", (384, 1, 1), ("1", "1", "1"), (), Tile(1, 1, "0", "0"))

EVERY_CALL = """
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
probe(HW_TENSOR_MAP(a), HW_TENSOR_MAP(d), u32* out, int n) {
  HW_SHARED(shared);
  u64* full = reinterpret_cast<u64*>(shared + 65536);
  const u32 rank = hw::cluster_rank();
  const int warp = hw::warp_uniform(threadIdx.x / 32);
  if (threadIdx.x == 0) {
    hw::mbarrier_init(full, 1);
    hw::mbarrier_init(full + 1, 2);
    hw::mbarrier_fence_init();
    hw::tensor_prefetch(&a);
  }
  hw::cluster_arrive();
  hw::cluster_wait();
  if (warp >= 8) {
    hw::registers_fewer<24>();
    if (threadIdx.x == 256) {
      hw::grid_dependency_wait();
      const u64 first = hw::policy_evict_first(), last = hw::policy_evict_last();
      hw::mbarrier_wait(full + 1, 1);
      hw::mbarrier_expect(full, 65536);
      hw::tma_load(shared, &a, 0, n, full);
      hw::tma_load(shared + 16384, &a, 64, n, full, first);
      hw::tma_load_multicast(shared + 32768, &a, 128, n, full, (u16)3);
      hw::tma_load_multicast(shared + 49152, &a, 192, n, full, (u16)3, last);
      hw::grid_dependency_launch();
    }
    hw::named_barrier_arrive(2, 160);
  } else {
    hw::registers_more<240>();
    float x[32], y[32], z[32];
    while (!hw::mbarrier_test(full, 0)) out[1] = 1;
    const u64 rows = hw::wgmma_descriptor(shared, 16, 1024), lines = hw::wgmma_descriptor(shared + 32768, 8192, 1024);
    hw::accumulator_fence(x); hw::accumulator_fence(y); hw::accumulator_fence(z);
    hw::wgmma_fence();
    for (int j = 0; j < 4; j++) {
      hw::wgmma<hw::bf16, 64, false, false>(x, hw::wgmma_advance(rows, 32 * j), hw::wgmma_advance(rows, 32 * j), j != 0);
      hw::wgmma<hw::f16, 64, true, true>(y, hw::wgmma_advance(lines, 2048 * j), hw::wgmma_advance(lines, 2048 * j), j != 0);
      hw::wgmma<hw::tf32, 64, false, false>(z, hw::wgmma_advance(rows, 32 * j), hw::wgmma_advance(rows, 32 * j), j != 0);
    }
    hw::wgmma_commit();
    hw::wgmma_wait<0>();
    hw::accumulator_fence(x); hw::accumulator_fence(y); hw::accumulator_fence(z);
    hw::mbarrier_arrive(full + 1);
    hw::mbarrier_arrive_cluster(full + 1, rank ^ 1);
    const u32 bf[4] = {hw::pack_bf16(x[0], x[1]), hw::pack_bf16(x[2], x[3]), hw::pack_bf16(x[4], x[5]), hw::pack_bf16(x[6], x[7])};
    const u32 hf[4] = {hw::pack_f16(y[0], y[1]), hw::pack_f16(y[2], y[3]), hw::pack_f16(y[4], y[5]), hw::pack_f16(y[6], y[7])};
    hw::stmatrix_x4(shared + threadIdx.x % 32 * 16, bf);
    hw::stmatrix_x4_trans(shared + 1024 + threadIdx.x % 32 * 16, hf);
    for (int i = 0; i < 32; i++) out[threadIdx.x * 32 + i] = __float_as_uint(x[i] + y[i] + z[i]);
    hw::fence_proxy_async();
    hw::named_barrier(1, 256);
    if (warp == 0) hw::named_barrier(2, 160);
    if (threadIdx.x == 0) {
      hw::tma_store(&d, shared, 0, n);
      hw::tma_store_commit();
      hw::tma_store_wait_read<1>();
      hw::tma_store_wait<0>();
    }
  }
  hw::cluster_sync();
}
"""


def source(body: str, *instructions: tuple[object, ...]) -> KernelSource:
    """A kernel called probe, behind the header and the wgmma ``instructions`` (arguments of the template's macro)."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=False)  # noqa: S701 - CUDA
    macro = environment.get_template("common/wgmma.cuh.j2").module.wgmma  # type: ignore[attr-defined]
    text = '#include "gemmtune/hopper.cuh"\n' + "".join(str(macro(*one)) for one in instructions) + body
    return KernelSource(Configuration.of("probe", {}), "probe", text, "", RECIPE)


@pytest.fixture(scope="module")
def kernel() -> CompiledKernel:
    if 90 not in supported_archs():
        pytest.skip("this NVRTC does not compile for sm_90a")
    every = [("bf16", 64), ("f16", 64, True, True), ("tf32", 64)]
    return compile_kernel(source(EVERY_CALL, *every), "sm_90a")


def test_every_intrinsic_is_called(kernel: CompiledKernel) -> None:
    declared = set(re.findall(r"HW_FN [\w ]+?\b(\w+)\(", HEADER.read_text())) | {"wgmma"}
    assert len(declared) > 35
    assert declared == set(re.findall(r"hw::(\w+)(?:<[^;()]*>)?\(", EVERY_CALL))
    assert kernel.cubin.startswith(b"\x7fELF")
