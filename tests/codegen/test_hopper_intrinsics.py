"""Hopper's intrinsics: one kernel calls each of them, NVRTC compiles it, and the SASS shows the instruction meant."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import jinja2
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with the extra cuda13 or cuda12")

from gemmtune.codegen import cache as cache_module
from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.control_flow import Instruction
from gemmtune.codegen.kernel import CompiledKernel, KernelSource
from gemmtune.codegen.nvrtc import compile_kernel, supported_archs
from gemmtune.codegen.render import INTRINSICS, TEMPLATES, further_headers
from gemmtune.codegen.sass import disassemble, find_disassemblers
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import CompileError, ConfigurationError
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
  if (hw::lds_cluster(reinterpret_cast<hw::Quad*>(shared), rank ^ 1).v[3] != 0.f) out[0] = 1;
  hw::cluster_arrive_relaxed();
  hw::cluster_wait();
  hw::cluster_arrive_shared();
  hw::keep(n);
  hw::cluster_wait();
  if (warp >= 8) {
    hw::registers_fewer<24>();
    if (warp == 8 && hw::elect_one()) {
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
      const u64 x_at = hw::wgmma_advance(rows, 32 * j);
      hw::wgmma<hw::bf16, 64, false, false>(x, x_at, x_at, j != 0);
      const u64 y_at = hw::wgmma_advance(lines, 2048 * j);
      hw::wgmma<hw::f16, 64, true, true>(y, y_at, y_at, j != 0);
      const u64 z_at = hw::wgmma_advance(rows, 32 * j);
      hw::wgmma<hw::tf32, 64, false, false>(z, z_at, z_at, j != 0);
    }
    hw::wgmma_commit();
    hw::wgmma_wait<0>();
    hw::accumulator_fence(x); hw::accumulator_fence(y); hw::accumulator_fence(z);
    hw::mbarrier_arrive(full + 1);
    hw::mbarrier_arrive_cluster(full + 1, rank ^ 1);
    const u32 bf[4] = {hw::pack_bf16(x[0], x[1]), hw::pack_bf16(x[2], x[3]), 0, 0};
    const u32 hf[4] = {hw::pack_f16(y[0], y[1]), hw::pack_f16(y[2], y[3]), 0, 0};
    hw::stmatrix_x4(shared + threadIdx.x % 32 * 16, bf);
    hw::stmatrix_x4_trans(shared + 1024 + threadIdx.x % 32 * 16, hf);
    for (int i = 0; i < 32; i++) out[threadIdx.x * 32 + i] = __float_as_uint(x[i] + y[i] + z[i]);
    hw::fence_proxy_async();
    hw::named_barrier(1, 256);
    if (warp == 0) hw::named_barrier(2, 160);
    hw::stg_if(n > 5, reinterpret_cast<hw::Quad*>(out), hw::Quad{ {x[0], x[1], x[2], x[3]} });
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
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=False)
    macro = environment.get_template("common/wgmma.cuh.j2").module.wgmma  # type: ignore[attr-defined]
    text = '#include "gemmtune/hopper.cuh"\n' + "".join(str(macro(*one)) for one in instructions) + body
    return KernelSource(Configuration.of("probe", {}), "probe", text, "", RECIPE)


def listing(kernel: CompiledKernel) -> tuple[Instruction, ...]:
    """Its machine code."""
    if not find_disassemblers():
        pytest.skip("nvdisasm comes with the extra sass")
    return disassemble(kernel.cubin).instructions


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


MEANT = {
    "SYNCS.EXCH.64": "mbarrier_init",
    "SYNCS.ARRIVE.TRANS64.A1T0": "mbarrier_arrive",
    "SYNCS.ARRIVE.TRANS64.RED.A1T0": "mbarrier_arrive_cluster",
    "SYNCS.ARRIVE.TRANS64": "mbarrier_expect",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT": "mbarrier_wait",
    "SYNCS.PHASECHK.TRANS64": "mbarrier_test",
    "FENCE.VIEW.ASYNC.S": "fence_proxy_async",
    "UTMACCTL.PF": "tensor_prefetch",
    "UTMALDG.2D": "tma_load",
    "UTMALDG.2D.MULTICAST": "tma_load_multicast",
    "UTMASTG.2D": "tma_store",
    "UTMACMDFLUSH": "tma_store_commit",
    "HGMMA.64x64x16.F32.BF16": "wgmma of bf16",
    "HGMMA.64x64x16.F32": "wgmma of f16",
    "HGMMA.64x64x8.F32.TF32": "wgmma of tf32",
    "WARPGROUP.ARRIVE": "wgmma_fence",
    "WARPGROUP.DEPBAR.LE": "wgmma_wait",
    "USETMAXREG.TRY_ALLOC.CTAPOOL": "registers_more",
    "USETMAXREG.DEALLOC.CTAPOOL": "registers_fewer",
    "BAR.ARV": "named_barrier_arrive",
    "UCGABAR_ARV": "cluster_arrive",
    "UCGABAR_WAIT": "cluster_wait",
    "ACQBULK": "grid_dependency_wait",
    "PREEXIT": "grid_dependency_launch",
    "STSM.16.M88.4": "stmatrix_x4",
    "STSM.16.MT88.4": "stmatrix_x4_trans",
    "ELECT": "elect_one",
    "STG.E.128": "stg_if",
    "F2FP.BF16.F32.PACK_AB": "pack_bf16",
    "F2FP.F16.F32.PACK_AB": "pack_f16",
}


def test_each_becomes_the_instruction_meant(kernel: CompiledKernel) -> None:
    found = {i.opcode for i in listing(kernel)}
    assert {name for opcode, name in MEANT.items() if opcode not in found} == set()


PARTS = {
    "mbarrier_arrive(u64*)": "hw::mbarrier_arrive((u64*)s);",
    "mbarrier_arrive_cluster": "hw::mbarrier_arrive_cluster((u64*)s, n);",
    "mbarrier_expect": "hw::mbarrier_expect((u64*)s, 64);",
    "mbarrier_wait": "hw::mbarrier_wait((u64*)s, n);",
}


@pytest.mark.parametrize("call", PARTS.values(), ids=list(PARTS))
def test_what_runs_once_a_k_block_has_no_memory_barrier(call: str, kernel: CompiledKernel) -> None:
    body = f'extern "C" __global__ void probe(int n) {{ HW_SHARED(s); {call} }}'
    assert not [i for i in listing(compile_kernel(source(body), "sm_90a")) if i.opcode.startswith(("MEMBAR", "ERRBAR"))]


@pytest.mark.parametrize(("call", "waits"), [("cluster_arrive", True), ("cluster_arrive_shared", False)])
def test_only_an_arrival_that_releases_global_memory_waits_for_it(
    call: str, waits: bool, kernel: CompiledKernel
) -> None:
    body = (
        'extern "C" __global__ void __cluster_dims__(2, 1, 1) probe(float* out) { HW_SHARED(s); float* x = (float*)s; '
        f"out[threadIdx.x] = 1.f; x[threadIdx.x] = 2.f; hw::{call}(); hw::cluster_wait(); "
        "out[1] = hw::lds_cluster((hw::Quad*)s, 1).v[0]; }"
    )
    found = {i.opcode for i in listing(compile_kernel(source(body), "sm_90a"))}
    assert ("MEMBAR.ALL.GPU" in found) == waits
    assert waits or "MEMBAR.ALL.CTA" in found


@pytest.mark.parametrize("what", [("bf16",), ("f16",), ("tf32",), ("bf16", True), ("f16", False, True)], ids=str)
def test_wgmma_assembles_for_every_n(what: tuple[object, ...], kernel: CompiledKernel) -> None:
    element, *turned = what
    turned += [False] * (2 - len(turned))
    sizes = range(8, 257, 8)
    flags = ", ".join(str(t).lower() for t in turned)
    body = 'extern "C" __global__ void __launch_bounds__(128, 1) probe(float* out, u64 a, u64 b, int n) {\n'
    for n in sizes:
        body += (
            f"  if (n == {n}) {{ float d[{n // 2}]; hw::wgmma_fence(); "
            f"hw::wgmma<hw::{element}, {n}, {flags}>(d, a, b, false); hw::wgmma_commit(); hw::wgmma_wait<0>(); "
            f"hw::accumulator_fence(d); float sum = 0; for (int i = 0; i < {n // 2}; i++) sum += d[i]; *out = sum; }}\n"
        )
    made = compile_kernel(source(body + "}\n", *((element, n, *turned) for n in sizes)), "sm_90a")
    shapes = {int(m[1]) for i in listing(made) if (m := re.match(r"HGMMA\.64x(\d+)x", i.opcode))}
    assert shapes == set(sizes)
    assert "(C75" not in made.log  # wgmma serialised


MAIN_LOOP = """
constexpr int STAGES = 4, STAGE = 49152, BLOCKS = 64;
extern "C" __global__ void __launch_bounds__(384, 1) probe(HW_TENSOR_MAP(a), HW_TENSOR_MAP(b), float* out) {
  HW_SHARED(shared);
  u64* full = reinterpret_cast<u64*>(shared + STAGES * STAGE);
  u64* empty = full + STAGES;
  const int group = hw::warp_uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) { hw::mbarrier_init(full + s, 1); hw::mbarrier_init(empty + s, 8); }
    hw::mbarrier_fence_init();
  }
  hw::sync_block();
  int stage = 0;
  u32 phase = 0;
  if (group == 2) {
    hw::registers_fewer<24>();
    if (threadIdx.x != 256) return;
    for (int k = 0; k < BLOCKS; k++) {
      hw::mbarrier_wait(empty + stage, phase ^ 1);
      hw::mbarrier_expect(full + stage, STAGE);
      hw::tma_load(shared + stage * STAGE, &a, k * 64, 0, full + stage);
      hw::tma_load(shared + stage * STAGE + 16384, &b, k * 64, 0, full + stage);
      if (++stage == STAGES) { stage = 0; phase ^= 1; }
    }
    return;
  }
  hw::registers_more<240>();
  float d[128];
  const u64 da = hw::wgmma_descriptor(shared + group * 8192, 16, 1024);
  const u64 db = hw::wgmma_descriptor(shared + 16384, 16, 1024);
  int before = 0;
  hw::accumulator_fence(d);
#pragma unroll 1
  for (int k = 0; k < BLOCKS; k++) {
    hw::mbarrier_wait(full + stage, phase);
    hw::wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; j++)
      hw::wgmma<hw::bf16, 256, false, false>(d, hw::wgmma_advance(da, stage * STAGE + 32 * j),
                                             hw::wgmma_advance(db, stage * STAGE + 32 * j), (k | j) != 0);
    hw::wgmma_commit();
    hw::wgmma_wait<1>();
    if (k != 0 && threadIdx.x % 32 == 0) hw::mbarrier_arrive(empty + before);
    before = stage;
    if (++stage == STAGES) { stage = 0; phase ^= 1; }
  }
  hw::wgmma_wait<0>();
  hw::accumulator_fence(d);
#pragma unroll
  for (int i = 0; i < 128; i++) out[threadIdx.x * 128 + i] = d[i];
}
"""


def test_a_pipelined_main_loop_is_neither_spilled_nor_serialised(kernel: CompiledKernel) -> None:
    made = compile_kernel(source(MAIN_LOOP, ("bf16", 256)), "sm_90a")
    assert made.resources is not None
    assert (made.resources.spill_bytes, made.resources.stack_bytes, made.resources.registers) == (0, 0, 168)
    assert "(C75" not in made.log
    hot = [i.opcode for i in disassemble(made.cubin).hot]
    assert sum(o.startswith("HGMMA.64x256x16") for o in hot) == 4
    assert not [o for o in hot if o.startswith(("MEMBAR", "LDC", "LDL", "STL", "LDG"))]
    assert len(hot) < 90


@pytest.mark.parametrize("arch", ["sm_90", "sm_80"])
def test_another_architecture_is_refused_with_the_reason(arch: str) -> None:
    if int(arch[3:]) not in supported_archs():
        pytest.skip(f"this NVRTC does not compile for {arch}")
    with pytest.raises(CompileError, match="needs the architecture sm_90a"):
        compile_kernel(source('extern "C" __global__ void probe() {}'), arch)


def test_a_header_counts_only_where_it_is_included() -> None:
    assert further_headers('#include "gemmtune/hw.cuh"\nvoid f();') == {}
    text = HEADER.read_text()
    assert further_headers('  #include "gemmtune/hopper.cuh"\n') == {"gemmtune/hopper.cuh": text}
    assert further_headers('// #include "gemmtune/hopper.cuh"\n') == {}
    with pytest.raises(ConfigurationError, match=r"no intrinsics header gemmtune/nosuch.cuh"):
        further_headers('#include "gemmtune/nosuch.cuh"')


def test_a_changed_header_is_another_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KernelCache(tmp_path)
    ours, plain = source(""), replace(source(""), text='#include "gemmtune/hw.cuh"\n')
    keys = [cache.key(one, (), "13.0") for one in (ours, plain)]
    changed = {"gemmtune/hopper.cuh": HEADER.read_text() + "//\n"}
    monkeypatch.setattr(cache_module, "further_headers", lambda text: changed if "hopper" in text else {})
    again = [cache.key(one, (), "13.0") for one in (ours, plain)]
    assert keys[0] != again[0]
    assert keys[1] == again[1]
