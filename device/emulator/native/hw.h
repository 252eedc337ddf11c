// The intrinsics layer for the CPU: the twin of codegen/intrinsics/hw.cuh, with the same names and signatures, each
// with the line of its call as a last, defaulted argument. Kernel sources include it as "gemmtune/hw.cuh".
#pragma once
#include "cuda_builtins.h"
#include "numbers.h"

#define HW_FN inline __attribute__((always_inline))
#define HW_LINE int line = __builtin_LINE()
#define HW_SHARED(name) unsigned char* name = emu::block->shared

namespace hw {

// ---------------------------------------------------------------- element types and packs
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
template <class T, int N> struct alignas(sizeof(T) * N) Pack { T v[N]; };

// ---------------------------------------------------------------- conversions
HW_FN float to_float(float x) { return x; }
HW_FN float to_float(f16 x) { return emu::float_from_half(x.bits); }
HW_FN float to_float(bf16 x) { return emu::float_from_bfloat(x.bits); }
template <class T> HW_FN T from_float(float x);
template <> HW_FN float from_float<float>(float x) { return x; }
template <> HW_FN f16 from_float<f16>(float x) { return {emu::half_from_float(x)}; }
template <> HW_FN bf16 from_float<bf16>(float x) { return {emu::bfloat_from_float(x)}; }
HW_FN float as_float(u32 bits) { return __builtin_bit_cast(float, bits); }
HW_FN u32 to_tf32_rna(float x) { return emu::tf32_ties_away(x); }
HW_FN u32 to_tf32_rn(float x) { return emu::tf32_ties_even(x); }
HW_FN u32 to_tf32(float x) { return __CUDA_ARCH__ >= 900 ? to_tf32_rn(x) : to_tf32_rna(x); }

// ---------------------------------------------------------------- loads and stores: checked, observed, then done
template <class V> HW_FN V ldg(const V* p, HW_LINE) {
  emu::global_access(p, sizeof(V), alignof(V), emu::GLOBAL_READ, line);
  return *p;
}
template <class V> HW_FN void stg(V* p, V v, HW_LINE) {
  emu::global_access(p, sizeof(V), alignof(V), emu::GLOBAL_WRITE, line);
  *p = v;
}
template <class V> HW_FN V lds(const V* p, HW_LINE) {
  emu::shared_access(p, sizeof(V), alignof(V), emu::SHARED_READ, line);
  return *p;
}
template <class V> HW_FN void sts(V* p, V v, HW_LINE) {
  emu::shared_access(p, sizeof(V), alignof(V), emu::SHARED_WRITE, line);
  *p = v;
}

// ---------------------------------------------------------------- barriers, fences, counters
HW_FN void sync_block(HW_LINE) { emu::block_barrier(line); }
HW_FN void sync_warp(HW_LINE) { emu::warp_collective(~0u, emu::warp_barrier, nullptr, "sync_warp", false, line); }
HW_FN void fence_device() { emu::fence_device(); }
HW_FN u32 atomic_inc(u32* p, u32 last, HW_LINE) { return emu::atomic_increment(p, last, line); }

// ---------------------------------------------------------------- ldmatrix
#define HW_LDMATRIX(NAME, COUNT)                                                            \
  HW_FN void NAME(u32 (&r)[COUNT], const void* p, HW_LINE) {                                \
    emu::LdmatrixArgument argument{r, p, line};                                             \
    emu::warp_collective(~0u, emu::NAME, &argument, #NAME, true, line);                     \
  }
HW_LDMATRIX(ldmatrix_x4, 4)
HW_LDMATRIX(ldmatrix_x4_trans, 4)
HW_LDMATRIX(ldmatrix_x2, 2)
HW_LDMATRIX(ldmatrix_x2_trans, 2)
#undef HW_LDMATRIX

// ---------------------------------------------------------------- mma.sync, fp32 accumulation: d += a . b
#define HW_MMA(NAME, OPERATION, A, B)                                                       \
  HW_FN void NAME(float (&d)[4], const u32 (&a)[A], const u32 (&b)[B], HW_LINE) {           \
    emu::MmaArgument argument{d, a, b};                                                     \
    emu::warp_collective(~0u, emu::OPERATION, &argument, #NAME, true, line);                \
  }
HW_MMA(mma_m16n8k8_f16, mma_k8_f16, 2, 1)
HW_MMA(mma_m16n8k16_f16, mma_k16_f16, 4, 2)
HW_MMA(mma_m16n8k16_bf16, mma_k16_bf16, 4, 2)
HW_MMA(mma_m16n8k8_tf32, mma_k8_tf32, 4, 2)
#undef HW_MMA

// ---------------------------------------------------------------- cp.async: global -> shared
template <int BYTES> HW_FN void cp_async(void* shared, const void* global, int src_bytes = BYTES, HW_LINE) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async moves 4, 8 or 16 bytes");
  emu::copy_async(shared, global, BYTES, src_bytes, line);
}
HW_FN void cp_async_commit() { emu::copy_commit(); }
template <int PENDING> HW_FN void cp_async_wait() { emu::copy_wait(PENDING); }

}  // namespace hw
