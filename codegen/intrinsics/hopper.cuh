// The intrinsics of Hopper (sm_90a) for NVRTC, beside those of hw.cuh: the only other file that holds PTX, but for the
// text of wgmma, which depends on N and comes from codegen/templates/common/wgmma.cuh.j2.
// Its twin for the CPU, with the same names and signatures, is device/emulator/native/hopper.h.
// Semantics: PTX ISA 8.x, "Parallel Synchronization: mbarrier", "Data Movement: Bulk copy / Tensor copy" (TMA),
// "Asynchronous Warpgroup Level Matrix Instructions" (wgmma, its descriptors and strides), "setmaxnreg", "barrier.cluster",
// "griddepcontrol", "stmatrix", "mapa". A `u64* b` is an mbarrier in shared memory; `cta` is a block's rank in its cluster.
#pragma once
#include "gemmtune/hw.cuh"
#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "gemmtune/hopper.cuh needs the architecture sm_90a"
#endif
// Declares the kernel parameter `name`: a tensor map by value, 64-byte aligned, whose address TMA may use.
#define HW_TENSOR_MAP(name) const __grid_constant__ hw::TensorMap name

namespace hw {

// ---------------------------------------------------------------- types
// An opaque CUtensorMap, encoded by the host.
struct __align__(64) TensorMap { u64 words[16]; };
// The element type of a wgmma that multiplies fp32 in shared memory as tf32 (it reads the upper 19 bits of each).
struct tf32 { u32 bits; };
typedef Pack<float, 4> Quad;

// ---------------------------------------------------------------- mbarrier
HW_FN void mbarrier_init(u64* b, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
// Makes the initialisations of this thread visible to the async proxy and to the cluster; a barrier must follow.
HW_FN void mbarrier_fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
HW_FN void mbarrier_arrive(u64* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
// Arrives on the barrier at the same place in block `cta` of the cluster. No .release.cluster: it would emit a MEMBAR for
// each k-block, and a stage that is released holds nothing written by the threads that release it.
HW_FN void mbarrier_arrive_cluster(u64* b, u32 cta) {
  asm volatile("{ .reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [r]; }"
               ::"r"(shared_address(b)), "r"(cta) : "memory");
}
// One arrival, and `bytes` more to come before the phase completes.
HW_FN void mbarrier_expect(u64* b, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
// Waits until the phase of `parity` has completed. A fresh barrier is in phase 0: waiting for parity 1 passes at once.
HW_FN void mbarrier_wait(u64* b, u32 parity) {
  asm volatile("{ .reg .pred p;\n AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @p bra DONE;\n bra AGAIN;\n DONE: }"
               ::"r"(shared_address(b)), "r"(parity) : "memory");
}
// Whether it has completed, without waiting.
HW_FN bool mbarrier_test(u64* b, u32 parity) {
  u32 done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
  return done != 0;
}

// ---------------------------------------------------------------- TMA: tiles of a 2-D tensor, (x, y) = (innermost, row)
// Orders this thread's ordinary writes to shared memory before TMA reads them; a barrier must follow.
HW_FN void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
HW_FN void tensor_prefetch(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
HW_FN u64 policy_evict_first() {
  u64 policy; asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy)); return policy;
}
HW_FN u64 policy_evict_last() {
  u64 policy; asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy)); return policy;
}

#define HW_TMA_LOAD "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
// Loads the map's box at (x, y) to `shared` (128-byte aligned; 1024 with the 128-byte swizzle); the whole box's bytes
// count on `b`, elements outside the tensor come as zeros.
HW_FN void tma_load(void* shared, const TensorMap* map, int x, int y, u64* b) {
  asm volatile(HW_TMA_LOAD " [%0], [%1, {%2, %3}], [%4];"
               ::"r"(shared_address(shared)), "l"(map), "r"(x), "r"(y), "r"(shared_address(b)) : "memory");
}
HW_FN void tma_load(void* shared, const TensorMap* map, int x, int y, u64* b, u64 policy) {
  asm volatile(HW_TMA_LOAD ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;"
               ::"r"(shared_address(shared)), "l"(map), "r"(x), "r"(y), "r"(shared_address(b)), "l"(policy) : "memory");
}
// The same to the same place in every block of the cluster whose bit is set in `mask`, each with its own barrier there.
HW_FN void tma_load_multicast(void* shared, const TensorMap* map, int x, int y, u64* b, u16 mask) {
  asm volatile(HW_TMA_LOAD ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
               ::"r"(shared_address(shared)), "l"(map), "r"(x), "r"(y), "r"(shared_address(b)), "h"(mask) : "memory");
}
HW_FN void tma_load_multicast(void* shared, const TensorMap* map, int x, int y, u64* b, u16 mask, u64 policy) {
  asm volatile(HW_TMA_LOAD ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;"
               ::"r"(shared_address(shared)), "l"(map), "r"(x), "r"(y), "r"(shared_address(b)), "h"(mask), "l"(policy) : "memory");
}
#undef HW_TMA_LOAD

// Stores the map's box from `shared` to (x, y), neither of which may be negative. Of a row, every 16 bytes that begin inside
// the tensor are written whole; the rest is not.
HW_FN void tma_store(const TensorMap* map, const void* shared, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
               ::"l"(map), "r"(x), "r"(y), "r"(shared_address(shared)) : "memory");
}
HW_FN void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most N of this thread's groups still read shared memory (_read), or are still incomplete.
template <int N> HW_FN void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
template <int N> HW_FN void tma_store_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"); }

// ---------------------------------------------------------------- wgmma
// The descriptor of a tile in shared memory under the 128-byte swizzle, its address 1024-byte aligned (base offset 0).
// Both strides in bytes, multiples of 16. The swizzled unit is 8 lines of 128 bytes.
//   K-major  (a line holds 128 bytes of K):  stride: from 8 rows of M or N to the next 8 (1024 where lines are packed);
//                                            leading: not used (16 by convention).
//   MN-major (a line holds 64 of M or N):    stride: from 8 of K to the next 8 (1024 where lines are packed);
//                                            leading: from 64 of M or N to the next 64.
HW_FN u64 wgmma_descriptor(const void* shared, u32 leading_bytes, u32 stride_bytes) {
  return (u64)((shared_address(shared) & 0x3FFFFu) >> 4) | (u64)((leading_bytes >> 4) & 0x3FFFu) << 16 |
         (u64)((stride_bytes >> 4) & 0x3FFFu) << 32 | (u64)1 << 62;
}
// The descriptor `bytes` (a multiple of 16) further: 32 for the next 32 bytes of K in a K-major tile, 16 lines = 2048 for
// the next 16 of K in an MN-major one. The swizzle acts on address bits, so a start inside a line is right.
HW_FN u64 wgmma_advance(u64 descriptor, u32 bytes) { return descriptor + (u64)(bytes >> 4); }

HW_FN void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
HW_FN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> HW_FN void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// d (+)= a . b for a tile of 64 x N x 32 bytes of K, by the 128 threads of a warpgroup; `accumulate` false starts at 0.
// Thread t of the warpgroup holds, for j < N / 8: d[4 * j + {0, 1}] at row 16 * (t / 32) + t % 32 / 4 and columns
// 8 * j + 2 * (t % 4) + {0, 1}, and d[4 * j + {2, 3}] eight rows below (PTX ISA, "Register Fragments", D of m64nNk16).
// TRANS: that operand is MN-major (16-bit types alone). Defined, for the T and N a kernel needs, by its template.
template <class T, int N, bool TRANS_A, bool TRANS_B> __device__ __forceinline__ void wgmma(float (&d)[N / 2], u64 a, u64 b, bool accumulate);
// Keeps the compiler from moving accumulators across wgmma: before the first of a series, and after the wait for the last.
template <int N> HW_FN void accumulator_fence(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// Has `v` computed here rather than where it is used, behind a barrier.
HW_FN void keep(int& v) { asm volatile("" : "+r"(v)); }

// ---------------------------------------------------------------- registers, barriers, cluster, dependent launch
// The warpgroup's registers a thread from here on: a multiple of 8, 24 to 256. `more` waits until they are free, and
// needs N at least what the warpgroup has, `fewer` at most (else undefined). In a kernel that uses these, all threads start
// with what __launch_bounds__ allows: 65536 / threads rounded down to 8 (at most 255), 168 for three warpgroups.
template <int N> HW_FN void registers_more() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> HW_FN void registers_fewer() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
// Barrier `id` (1 to 15; 0 is sync_block's) of `threads` threads, whole warps: wait for the rest, or only arrive.
HW_FN void named_barrier(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
HW_FN void named_barrier_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
HW_FN u32 cluster_rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
// Not .aligned: the threads of a warp may come from different paths.
HW_FN void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
// The same, but orders nothing: for a block that has only read what others wrote.
HW_FN void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
// The same, but orders this thread's writes to its own block's shared memory alone: for a block whose shared memory others
// read, without the MEMBAR.GPU of .release, which waits until every store to global memory has arrived, too.
HW_FN void cluster_arrive_shared() {
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 8)
  asm volatile("fence.release.sync_restrict::shared::cta.cluster;\n barrier.cluster.arrive.relaxed;" ::: "memory");
#else
  cluster_arrive();  // no PTX ISA 8.6 yet
#endif
}
HW_FN void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
HW_FN void cluster_sync() { cluster_arrive(); cluster_wait(); }
// What lies at the place of `p` in the shared memory of block `cta` of the cluster, which must have written it before a
// barrier of the cluster, and may not end before another.
HW_FN Quad lds_cluster(const Quad* p, u32 cta) {
  Quad q;
  asm volatile("{ .reg .b32 r; mapa.shared::cluster.u32 r, %4, %5; ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [r]; }"
               : "=f"(q.v[0]), "=f"(q.v[1]), "=f"(q.v[2]), "=f"(q.v[3]) : "r"(shared_address(p)), "r"(cta) : "memory");
  return q;
}
// Programmatic dependent launch: wait for all memory of the kernels before, or let those behind start.
HW_FN void grid_dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
HW_FN void grid_dependency_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---------------------------------------------------------------- epilogue
// Stores four 8x8 matrices of 16-bit elements, in the fragment layout of ldmatrix: lane l gives the address of row l % 8
// of matrix l / 8 (16 bytes, 16-byte aligned); lane l holds columns 2 * (l % 4) + {0, 1} of row l / 4 of each (_trans:
// rows and columns exchanged).
HW_FN void stmatrix_x4(void* shared, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
               ::"r"(shared_address(shared)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
HW_FN void stmatrix_x4_trans(void* shared, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
               ::"r"(shared_address(shared)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
// Stores where `there`, without a branch, behind which the compiler would put the load of the next store's value.
HW_FN void stg_if(bool there, Quad* p, const Quad& q) {
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p st.global.v4.f32 [%0], {%1,%2,%3,%4}; }"
               ::"l"(p), "f"(q.v[0]), "f"(q.v[1]), "f"(q.v[2]), "f"(q.v[3]), "r"((int)there) : "memory");
}
HW_FN u32 pack_bf16(float low, float high) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }
HW_FN u32 pack_f16(float low, float high) { u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }
// `v` of lane 0, which the compiler then knows to be the same in the whole warp.
HW_FN int warp_uniform(int v) { return __shfl_sync(~0u, v, 0); }
// True in one lane, always the same, of a whole warp. Branched on, it tells the compiler that what follows runs in one
// lane: TMA instructions then take uniform registers as they are, without a loop over lanes that might differ.
HW_FN bool elect_one() {
  u32 elected;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
  return elected != 0;
}

}  // namespace hw
