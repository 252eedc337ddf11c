// Hopper's intrinsics for the CPU: the twin of codegen/intrinsics/hopper.cuh, with the same names and signatures, each
// with the line of its call as a last, defaulted argument. Kernel sources include it as "gemmtune/hopper.cuh".
#pragma once
#include "gemmtune/hw.cuh"

#define HW_TENSOR_MAP(name) const __grid_constant__ hw::TensorMap name

namespace hw {

// ---------------------------------------------------------------- types
struct alignas(64) TensorMap { u64 words[16]; };
struct tf32 { u32 bits; };
typedef Pack<float, 4> Quad;

// ---------------------------------------------------------------- mbarrier
HW_FN void mbarrier_init(u64* b, u32 arrivals, HW_LINE) { emu::mbarrier_init(b, arrivals, line); }
HW_FN void mbarrier_fence_init() { emu::mbarrier_fence_init(); }
HW_FN void mbarrier_arrive(u64* b, HW_LINE) { emu::mbarrier_arrive(b, line); }
HW_FN void mbarrier_arrive_cluster(u64* b, u32 cta, HW_LINE) { emu::mbarrier_arrive_cluster(b, cta, line); }
HW_FN void mbarrier_expect(u64* b, u32 bytes, HW_LINE) { emu::mbarrier_expect(b, bytes, line); }
HW_FN void mbarrier_wait(u64* b, u32 parity, HW_LINE) { emu::mbarrier_wait(b, parity, line); }
HW_FN bool mbarrier_test(u64* b, u32 parity, HW_LINE) { return emu::mbarrier_test(b, parity, line); }

// ---------------------------------------------------------------- TMA
HW_FN void fence_proxy_async() { emu::fence_proxy_async(); }
HW_FN void tensor_prefetch(const TensorMap* map, HW_LINE) { emu::tensor_check(map, "tensor_prefetch", line); }
HW_FN u64 policy_evict_first() { return emu::POLICY + 1; }
HW_FN u64 policy_evict_last() { return emu::POLICY + 2; }
HW_FN void tma_load(void* shared, const TensorMap* map, int x, int y, u64* b, HW_LINE) {
  emu::tma_load(shared, map, x, y, b, 0, false, line);
}
HW_FN void tma_load(void* shared, const TensorMap* map, int x, int y, u64* b, u64 policy, HW_LINE) {
  emu::policy_check(policy, line);
  emu::tma_load(shared, map, x, y, b, 0, false, line);
}
HW_FN void tma_load_multicast(void* shared, const TensorMap* map, int x, int y, u64* b, u16 mask, HW_LINE) {
  emu::tma_load(shared, map, x, y, b, mask, true, line);
}
HW_FN void tma_load_multicast(void* shared, const TensorMap* map, int x, int y, u64* b, u16 mask, u64 policy, HW_LINE) {
  emu::policy_check(policy, line);
  emu::tma_load(shared, map, x, y, b, mask, true, line);
}
HW_FN void tma_store(const TensorMap* map, const void* shared, int x, int y, HW_LINE) { emu::tma_store(map, shared, x, y, line); }
HW_FN void tma_store_commit() { emu::tma_store_commit(); }
template <int N> HW_FN void tma_store_wait_read(HW_LINE) { emu::tma_store_wait(N, line); }
template <int N> HW_FN void tma_store_wait(HW_LINE) { emu::tma_store_wait(N, line); }

// ---------------------------------------------------------------- wgmma
HW_FN u64 wgmma_descriptor(const void* shared, u32 leading_bytes, u32 stride_bytes, HW_LINE) {
  return emu::wgmma_descriptor(shared, leading_bytes, stride_bytes, line);
}
HW_FN u64 wgmma_advance(u64 descriptor, u32 bytes) { return descriptor + (u64)(bytes >> 4); }
HW_FN void wgmma_fence() { emu::wgmma_fence(); }
HW_FN void wgmma_commit() { emu::wgmma_commit(); }
template <int N> HW_FN void wgmma_wait(HW_LINE) { emu::wgmma_wait(N, line); }

template <class T> constexpr emu::WgmmaType wgmma_type;
template <> constexpr emu::WgmmaType wgmma_type<bf16> = emu::WGMMA_BF16;
template <> constexpr emu::WgmmaType wgmma_type<f16> = emu::WGMMA_F16;
template <> constexpr emu::WgmmaType wgmma_type<tf32> = emu::WGMMA_TF32;
template <class T, int N, bool TRANS_A, bool TRANS_B> HW_FN void wgmma(float (&d)[N / 2], u64 a, u64 b, bool accumulate, HW_LINE) {
  static_assert(N % 8 == 0 && N >= 8 && N <= 256, "N is a multiple of 8, 8 to 256");
  static constexpr emu::WgmmaShape shape{wgmma_type<T>, N, TRANS_A, TRANS_B};
  emu::wgmma_issue(&shape, d, a, b, accumulate, line);
}
template <int N> HW_FN void accumulator_fence(float (&d)[N]) {}
HW_FN void keep(int& v) {}

// ---------------------------------------------------------------- registers, barriers, cluster, dependent launch
template <int N> HW_FN void registers_more(HW_LINE) {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256, "a multiple of 8, 24 to 256");
  emu::registers_change(N, true, line);
}
template <int N> HW_FN void registers_fewer(HW_LINE) {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256, "a multiple of 8, 24 to 256");
  emu::registers_change(N, false, line);
}
HW_FN void named_barrier(int id, int threads, HW_LINE) { emu::named_barrier(id, threads, true, line); }
HW_FN void named_barrier_arrive(int id, int threads, HW_LINE) { emu::named_barrier(id, threads, false, line); }
HW_FN u32 cluster_rank() { return emu::cluster_rank(); }
HW_FN void cluster_arrive(HW_LINE) { emu::cluster_arrive(true, line); }
HW_FN void cluster_arrive_relaxed(HW_LINE) { emu::cluster_arrive(false, line); }
// What it need not order, earlier stores to global memory, is not looked at here.
HW_FN void cluster_arrive_shared(HW_LINE) { emu::cluster_arrive(true, line); }
HW_FN void cluster_wait(HW_LINE) { emu::cluster_wait(line); }
HW_FN void cluster_sync(HW_LINE) { emu::cluster_arrive(true, line), emu::cluster_wait(line); }
HW_FN Quad lds_cluster(const Quad* p, u32 cta, HW_LINE) {
  return *(const Quad*)emu::cluster_place(p, sizeof(Quad), alignof(Quad), cta, line);
}
HW_FN void grid_dependency_wait() {}
HW_FN void grid_dependency_launch() {}

// ---------------------------------------------------------------- epilogue
#define HW_STMATRIX(NAME)                                                                   \
  HW_FN void NAME(void* shared, const u32 (&r)[4], HW_LINE) {                               \
    emu::StmatrixArgument argument{r, shared, line};                                        \
    emu::warp_collective(~0u, emu::NAME, &argument, #NAME, true, line);                     \
  }
HW_STMATRIX(stmatrix_x4)
HW_STMATRIX(stmatrix_x4_trans)
#undef HW_STMATRIX
HW_FN void stg_if(bool there, Quad* p, const Quad& q, HW_LINE) {
  if (there) stg(p, q, line);
}
HW_FN u32 pack_bf16(float low, float high) { return emu::bfloat_from_float(low) | (u32)emu::bfloat_from_float(high) << 16; }
HW_FN u32 pack_f16(float low, float high) { return emu::half_from_float(low) | (u32)emu::half_from_float(high) << 16; }
HW_FN int warp_uniform(int v, HW_LINE) { return emu::exchange(~0u, v, 0, "warp_uniform", line); }
HW_FN bool elect_one(HW_LINE) { return emu::exchange(~0u, (int)emu::current->lane, 0, "elect_one", line) == (int)emu::current->lane; }

}  // namespace hw
