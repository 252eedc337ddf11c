// The intrinsics layer for NVRTC: the only file that holds PTX. Templates speak to hw:: alone.
// Its twin for the CPU, with the same names and signatures, is device/emulator/native/hw.h.
// Semantics and fragment layouts: PTX ISA 8.x, sections "Warp-level matrix instructions" (mma.m16n8k8, m16n8k16,
// ldmatrix), "Data movement: cp.async", and "cvt". No CUDA header is included: that alone would cost 0.3 s a compile.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
#define HW_FN static __device__ __forceinline__
// Dynamic shared memory of the block, 1024-byte aligned, as `unsigned char* name`.
#define HW_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]

namespace hw {

// ---------------------------------------------------------------- element types and packs
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
// N elements moved as one access of sizeof(T) * N bytes (1 to 16, a power of two).
template <class T, int N> struct __align__(sizeof(T) * N) Pack { T v[N]; };

// ---------------------------------------------------------------- conversions (round to nearest even)
HW_FN float to_float(float x) { return x; }
HW_FN float to_float(f16 x) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits)); return r; }
HW_FN float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

template <class T> HW_FN T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ f16 from_float<f16>(float x) { f16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x)); return r; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) {
  bf16 r;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
#else
  u32 b = __float_as_uint(x);
  r.bits = (b & 0x7fffffffu) > 0x7f800000u ? (u16)0x7fff : (u16)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
#endif
  return r;
}
HW_FN float as_float(u32 bits) { return __uint_as_float(bits); }
// Round to tf32, as the bits that mma reads. From Hopper on cvt.rn.tf32.f32 (to nearest, ties to even) is one instruction;
// Ampere has cvt.rna.tf32.f32 alone (ties away from zero), which is two.
#if __CUDA_ARCH__ >= 800
HW_FN u32 to_tf32_rna(float x) { u32 r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x)); return r; }
#endif
#if __CUDA_ARCH__ >= 900
HW_FN u32 to_tf32_rn(float x) { u32 r; asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(r) : "f"(x)); return r; }
HW_FN u32 to_tf32(float x) { return to_tf32_rn(x); }
#elif __CUDA_ARCH__ >= 800
HW_FN u32 to_tf32(float x) { return to_tf32_rna(x); }
#endif

// ---------------------------------------------------------------- loads and stores
// Functions, not plain dereferences, so that the emulator can count sectors and bank conflicts at each site.
template <class V> HW_FN V ldg(const V* p) { return *p; }
template <class V> HW_FN void stg(V* p, V v) { *p = v; }
template <class V> HW_FN V lds(const V* p) { return *p; }
template <class V> HW_FN void sts(V* p, V v) { *p = v; }

// ---------------------------------------------------------------- barriers, fences, counters
HW_FN void sync_block() { __syncthreads(); }
HW_FN void sync_warp() { __syncwarp(); }
HW_FN void fence_device() { __threadfence(); }
// Adds one and wraps to zero past `last`; returns the old value: a counter that resets itself.
HW_FN u32 atomic_inc(u32* p, u32 last) { return atomicInc(p, last); }

#if __CUDA_ARCH__ >= 750
// ---------------------------------------------------------------- ldmatrix (8x8 matrices of 16-bit elements)
// Lane l gives the address of row l % 8 of matrix l / 8; each row is 16 bytes, 16-byte aligned, in shared memory.
HW_FN u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
HW_FN void ldmatrix_x4(u32 (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)) : "memory");
}
HW_FN void ldmatrix_x4_trans(u32 (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)) : "memory");
}
HW_FN void ldmatrix_x2(u32 (&r)[2], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(p)) : "memory");
}
HW_FN void ldmatrix_x2_trans(u32 (&r)[2], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(p)) : "memory");
}

// ---------------------------------------------------------------- mma.sync, fp32 accumulation: d += a . b
HW_FN void mma_m16n8k8_f16(float (&d)[4], const u32 (&a)[2], const u32 (&b)[1]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
#endif
#if __CUDA_ARCH__ >= 800
#define HW_MMA_4_2(NAME, INSTRUCTION)                                                                   \
  HW_FN void NAME(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {                                \
    asm volatile(INSTRUCTION " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                   \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                   \
  }
HW_MMA_4_2(mma_m16n8k16_bf16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
HW_MMA_4_2(mma_m16n8k16_f16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
HW_MMA_4_2(mma_m16n8k8_tf32, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
#undef HW_MMA_4_2

// ---------------------------------------------------------------- cp.async: global -> shared, BYTES = 4, 8 or 16
// Copies the first src_bytes and zero-fills the rest of BYTES. Both addresses are BYTES-aligned.
template <int BYTES> HW_FN void cp_async(void* shared, const void* global, int src_bytes = BYTES) {
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(src_bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)), "l"(global), "n"(BYTES), "r"(src_bytes) : "memory");
}
HW_FN void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most PENDING of this thread's groups are still in flight.
template <int PENDING> HW_FN void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }
#endif

}  // namespace hw
