"""One kernel that uses all of a Hopper launch: tensor maps in every layout, clusters with multicast, a persistent grid
over the device's SMs, a TMA store, dependent launches. It is right on the emulator, and to the bit on a real GPU."""

from __future__ import annotations

from typing import Any

import jinja2
import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with the extra cuda13 or cuda12")

from gemmtune.codegen.kernel import CompiledKernel, KernelSource
from gemmtune.codegen.nvrtc import compile_kernel, supported_archs
from gemmtune.codegen.render import TEMPLATES
from gemmtune.device.emulator.emulate import emulate
from gemmtune.device.toolchain import device_count
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import LaunchError, ToolchainError
from gemmtune.space.gemm import Gemm
from gemmtune.space.recipe import Argument, LaunchRecipe, Tile
from gemmtune.space.tensor_map import TensorMapSpec

TEMPLATE = """
{% from "common/wgmma.cuh.j2" import wgmma %}
#include "gemmtune/hopper.cuh"
{{ wgmma(element, 128, trans_a, trans_b) }}
constexpr int N = {{ n }}, K = {{ k }}, TILES_N = (N + 127) / 128, BLOCKS_K = (K + 63) / 64;
constexpr int STAGES = 3, STAGE = 24576, STORE = STAGES * STAGE, BARRIERS = STORE + 16384;
constexpr bool TRANS_A = {{ trans_a | lower }}, TRANS_B = {{ trans_b | lower }};

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
probe(HW_TENSOR_MAP(a), HW_TENSOR_MAP(b), HW_TENSOR_MAP(d), int m) {
  HW_SHARED(shared);
  u64* full = reinterpret_cast<u64*>(shared + BARRIERS);
  u64* empty = full + STAGES;
  const int rank = hw::cluster_rank(), warp = hw::warp_uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  const int tiles = (m + 127) / 128 * TILES_N;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) { hw::mbarrier_init(full + s, 1); hw::mbarrier_init(empty + s, 8); }
    hw::mbarrier_fence_init();
    hw::tensor_prefetch(&a);
  }
  hw::cluster_sync();
  int stage = 0;
  u32 phase = 0;
  if (warp >= 4) {
    hw::registers_fewer<40>();
    if (warp == 4 && lane == 0) {
      const u64 policy = hw::policy_evict_last();
      hw::grid_dependency_wait();
      for (int t = blockIdx.x / 2; t < tiles; t += gridDim.x / 2) {
        const int row = t / TILES_N * 128 + rank * 64, column = t % TILES_N * 128 + rank * 64;
        for (int kb = 0; kb < BLOCKS_K; kb++) {
          hw::mbarrier_wait(empty + stage, phase ^ 1);
          hw::mbarrier_expect(full + stage, STAGE);
          unsigned char* at = shared + stage * STAGE;
          hw::tma_load(at, &a, TRANS_A ? row : kb * 64, TRANS_A ? kb * 64 : row, full + stage, policy);
          hw::tma_load_multicast(at + 8192 + rank * 8192, &b, TRANS_B ? column : kb * 64,
                                 TRANS_B ? kb * 64 : column, full + stage, (u16)3);
          if (++stage == STAGES) { stage = 0; phase ^= 1; }
        }
      }
      hw::grid_dependency_launch();
    }
  } else {
    hw::registers_more<240>();
    const u64 da = hw::wgmma_descriptor(shared, 16, 1024), db = hw::wgmma_descriptor(shared + 8192, 8192, 1024);
    for (int t = blockIdx.x / 2; t < tiles; t += gridDim.x / 2) {
      const int row = t / TILES_N * 128 + rank * 64, column = t % TILES_N * 128;
      float sum[64];
      for (int kb = 0; kb < BLOCKS_K; kb++) {
        hw::mbarrier_wait(full + stage, phase);
        hw::accumulator_fence(sum);
        hw::wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; j++)
          hw::wgmma<hw::{{ element }}, 128, TRANS_A, TRANS_B>(
              sum, hw::wgmma_advance(da, stage * STAGE + j * (TRANS_A ? 2048 : 32)),
              hw::wgmma_advance(db, stage * STAGE + j * (TRANS_B ? 2048 : 32)), (kb | j) != 0);
        hw::wgmma_commit();
        hw::wgmma_wait<0>();
        hw::accumulator_fence(sum);
        if (lane < 2) hw::mbarrier_arrive_cluster(empty + stage, lane);
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
      }
      if (threadIdx.x == 0) hw::tma_store_wait_read<0>();
      hw::named_barrier(1, 128);
#pragma unroll
      for (int c = 0; c < 8; c++) {
        const float* s = sum + c * 8;
        const u32 packed[4] = {hw::pack_{{ element }}(s[0], s[1]), hw::pack_{{ element }}(s[2], s[3]),
                               hw::pack_{{ element }}(s[4], s[5]), hw::pack_{{ element }}(s[6], s[7])};
        const u32 line = warp * 16 + lane / 8 % 2 * 8 + lane % 8, chunk = c % 4 * 2 + lane / 16;
        hw::stmatrix_x4(shared + STORE + c / 4 * 8192 + line * 128 + (chunk ^ line % 8) * 16, packed);
      }
      hw::fence_proxy_async();
      hw::named_barrier(1, 128);
      if (threadIdx.x == 0) {
        hw::tma_store(&d, shared + STORE, column, row);
        hw::tma_store(&d, shared + STORE + 8192, column + 64, row);
        hw::tma_store_commit();
      }
    }
    if (threadIdx.x == 0) hw::tma_store_wait<0>();
  }
  hw::cluster_sync();
}
"""
ELEMENTS = {"bf16": "bf16", "fp16": "f16"}
ALL = [("bf16", "nt"), ("bf16", "nn"), ("bf16", "tn"), ("bf16", "tt"), ("fp16", "nt"), ("fp16", "tn")]
M, N, K = 328, 200, 328
TILES_N = 2


def pitches(layout: str, m: int) -> dict[str, int]:
    """Leading dimensions by tensor: multiples of 8 elements, wider than the rows."""
    wide = {"a": K if layout[0] == "n" else m, "b": K if layout[1] == "t" else N, "d": N}
    return {name: -(-width // 8) * 8 + 16 for name, width in wide.items()}


def gemm(dtype: str, layout: str, m: int) -> Gemm:
    """The problem the kernel computes, in wide rows."""
    return Gemm(m, N, K, dtype, layout=layout, **{f"ld{name}": pitch for name, pitch in pitches(layout, m).items()})


def probe(dtype: str, layout: str, *, programmatic: bool = False) -> CompiledKernel:
    """The kernel and its recipe for M from 1, N and K fixed."""
    element, trans_a, trans_b = ELEMENTS[dtype], layout[0] == "t", layout[1] == "n"
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined)
    text = environment.from_string(TEMPLATE).render(element=element, n=N, k=K, trans_a=trans_a, trans_b=trans_b)

    def tensor_map(name: str, inner: str, rows: str) -> Argument:
        return Argument("tensor_map", name, map=TensorMapSpec(element, (inner, rows), f"ld{name} * 2", (64, 64)))

    recipe = LaunchRecipe(
        entry="probe",
        block=(384, 1, 1),
        grid=(f"min(ceil_div(m, 128) * {TILES_N}, max(sms // 2, 1)) * 2", "1", "1"),
        arguments=(
            tensor_map("a", *(("m", "k") if trans_a else ("k", "m"))),
            tensor_map("b", *(("n", "k") if trans_b else ("k", "n"))),
            tensor_map("d", "n", "m"),
            Argument("scalar", "m", "i32", "m"),
        ),
        tile=Tile(64, 128, f"(bx // 2 // {TILES_N} * 2 + bx % 2) * 64", f"bx // 2 % {TILES_N} * 128"),
        cluster=(2, 1, 1),
        dynamic_shared=3 * 24576 + 16384 + 64,
        constants={"n": N, "k": K},
        programmatic=programmatic,
    )
    if 90 not in supported_archs():
        pytest.skip("this NVRTC does not compile for sm_90a")
    return compile_kernel(KernelSource(Configuration.of("probe", {}), "probe", text, "", recipe), "sm_90a")


@pytest.mark.parametrize(("dtype", "layout"), ALL)
def test_it_compiles_without_spills_or_serialised_wgmma(dtype: str, layout: str) -> None:
    kernel = probe(dtype, layout)
    assert kernel.resources is not None
    assert kernel.resources.spill_bytes == 0
    assert kernel.resources.registers == 168  # so that 240 is more, 40 is fewer, and 240 + 40 + 40 are there
    assert "(C75" not in kernel.log


@pytest.mark.parametrize(("dtype", "layout"), ALL)
def test_it_is_right_on_the_emulator(dtype: str, layout: str) -> None:
    kernel = probe(dtype, layout)
    try:
        found = emulate(kernel.source.text, kernel.recipe, gemm(dtype, layout, M))
    except ToolchainError as error:
        pytest.skip(str(error))
    assert found.verification.passed, found.verification.detail


# ---------------------------------------------------------------------------------------------------- on a real GPU


@pytest.fixture(scope="module")
def cupy() -> Any:
    try:
        device_count()
    except ToolchainError as error:
        pytest.skip(str(error))
    import cupy

    if int(cupy.cuda.Device(0).compute_capability) != 90:
        pytest.skip("TMA and wgmma need a GPU of compute capability 9.0")
    return cupy


class Case:
    """Operands of small integers, whose products every accumulation order sums exactly, and the right result."""

    def __init__(self, cupy: Any, dtype: str, layout: str, m: int, seed: int = 0) -> None:
        self.problem, wide = gemm(dtype, layout, m), pitches(layout, m)
        numbers = np.random.default_rng(seed)
        a, b = numbers.integers(-3, 4, (m, K)), numbers.integers(-3, 4, (N, K))
        self.right = self.round(np.asarray(a @ b.T, np.float32), dtype)
        self.cupy, self.shape = cupy, (m, N)
        self.a = self._put(a if layout[0] == "n" else a.T, wide["a"], dtype)
        self.b = self._put(b if layout[1] == "t" else b.T, wide["b"], dtype)
        self.d = cupy.full((m + 2, wide["d"]), 0x7FF1, cupy.uint16)

    @staticmethod
    def round(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
        """The bits of ``values`` rounded to nearest even."""
        if dtype == "fp16":
            return values.astype(np.float16).view(np.uint16)
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)

    def _put(self, values: np.ndarray[Any, Any], pitch: int, dtype: str) -> Any:
        rows = np.full((values.shape[0], pitch), 0x7FF1, np.uint16)  # not a number where nothing may be read
        rows[:, : values.shape[1]] = self.round(np.ascontiguousarray(values, np.float32), dtype)
        return self.cupy.asarray(rows)

    @property
    def pointers(self) -> dict[str, int]:
        return {"a": int(self.a.data.ptr), "b": int(self.b.data.ptr), "d": int(self.d.data.ptr)}

    def check(self) -> None:
        """D is right to the bit, and nothing beside it was written; D is cleared for the next time."""
        m, n = self.shape
        found = self.d.get()
        np.testing.assert_array_equal(found[:m, :n], self.right)
        assert (found[m:] == 0x7FF1).all()
        assert (found[:, n:] == 0x7FF1).all()
        self.d.fill(0x7FF1)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "layout"), ALL)
@pytest.mark.parametrize("programmatic", [False, True])
def test_it_is_right_in_every_layout(cupy: Any, dtype: str, layout: str, programmatic: bool) -> None:
    from gemmtune.device.launch import LoadedKernel

    kernel = probe(dtype, layout, programmatic=programmatic)
    loaded = LoadedKernel(kernel.cubin, kernel.recipe)
    for m in (M, 128, 1):
        case = Case(cupy, dtype, layout, m)
        for _ in range(3):  # back to back: with dependent launches each overlaps the one before
            loaded.launch(case.problem.environment(), case.pointers, 0)
        cupy.cuda.runtime.deviceSynchronize()
        case.check()


@pytest.mark.gpu
def test_a_persistent_grid_goes_round_more_tiles_than_sms(cupy: Any) -> None:
    from gemmtune.device.launch import LoadedKernel

    kernel = probe("bf16", "nt")
    loaded = LoadedKernel(kernel.cubin, kernel.recipe)
    case = Case(cupy, "bf16", "nt", 128 * 150 + 5)
    prepared = loaded.prepare(case.problem.environment(), case.pointers)
    assert prepared.grid[0] == loaded.sms // 2 * 2
    prepared.launch(0)
    cupy.cuda.runtime.deviceSynchronize()
    case.check()


@pytest.mark.gpu
@pytest.mark.parametrize("programmatic", [False, True])
def test_a_prepared_launch_serves_other_arrays_and_a_graph(cupy: Any, programmatic: bool) -> None:
    from gemmtune.device.launch import LoadedKernel

    kernel = probe("bf16", "nn", programmatic=programmatic)
    loaded = LoadedKernel(kernel.cubin, kernel.recipe)
    cases = [Case(cupy, "bf16", "nn", M, seed) for seed in range(3)]
    cupy.cuda.runtime.deviceSynchronize()
    prepared = loaded.prepare(cases[0].problem.environment(), cases[0].pointers)
    stream = cupy.cuda.Stream(non_blocking=True)
    addresses = [[c.pointers[name] for name in prepared.pointer_names] for c in cases]
    for each in addresses:
        prepared.launch_at(each, stream.ptr)
    stream.synchronize()
    for case in cases:
        case.check()
    cupy.cuda.runtime.deviceSynchronize()
    stream.begin_capture()
    for each in addresses:
        prepared.launch_at(each, stream.ptr)
    graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    for case in cases:
        case.check()


@pytest.mark.gpu
def test_the_driver_itself_is_never_asked_for_what_tma_cannot_do(cupy: Any) -> None:
    from gemmtune.device.launch import LoadedKernel

    kernel = probe("bf16", "nt")
    loaded = LoadedKernel(kernel.cubin, kernel.recipe)
    case = Case(cupy, "bf16", "nt", M)
    with pytest.raises(LaunchError, match="rows of a are 658 bytes apart"):
        loaded.launch({**case.problem.environment(), "lda": 329}, case.pointers)
    with pytest.raises(LaunchError, match="address of b is not a multiple of 16"):
        loaded.launch(case.problem.environment(), {**case.pointers, "b": case.pointers["b"] + 8})
