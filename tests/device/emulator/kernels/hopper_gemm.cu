// d = a . b^T in bf16, both operands K-major: a persistent kernel with all that Hopper has. Two blocks in a cluster share
// each tile of b, of which either loads half for both; two warpgroups multiply 64 rows each, the third loads.
#include "gemmtune/hopper.cuh"

constexpr int BM = 128, BN = 64, BK = 64, STAGES = 3, STEPS = BK / 16;
constexpr u32 A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, STAGE_BYTES = A_BYTES + B_BYTES, SLAB_BYTES = 64 * BN * 2;

#ifdef __CUDACC_RTC__
#error "for the emulator alone: wgmma's PTX comes from a template"
#endif

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
hopper_gemm(HW_TENSOR_MAP(a), HW_TENSOR_MAP(b), HW_TENSOR_MAP(d), int down, int across, int k_tiles) {
  HW_SHARED(shared);
  unsigned char* slabs = shared + STAGES * STAGE_BYTES;
  u64* full = reinterpret_cast<u64*>(slabs + 2 * SLAB_BYTES);
  u64* empty = full + STAGES;
  const int rank = (int)hw::cluster_rank(), cluster = blockIdx.x / 2, clusters = gridDim.x / 2;
  const int warp = hw::warp_uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      hw::mbarrier_init(full + i, 1);
      hw::mbarrier_init(empty + i, 2 * 8);
    }
    hw::mbarrier_fence_init();
    hw::tensor_prefetch(&a);
  }
  hw::cluster_sync();
  if (warp >= 8) {
    hw::registers_fewer<40>();
    if (warp == 8 && lane == 0) {
      int stage = 0;
      u32 phase = 0;
      for (int tile = cluster; tile < down * across; tile += clusters)
        for (int k = 0; k < k_tiles; k++) {
          hw::mbarrier_wait(empty + stage, phase ^ 1);
          hw::mbarrier_expect(full + stage, STAGE_BYTES);
          unsigned char* to = shared + stage * STAGE_BYTES;
          hw::tma_load(to, &a, k * BK, (tile / across * 2 + rank) * BM, full + stage, hw::policy_evict_first());
          hw::tma_load_multicast(to + A_BYTES + rank * (B_BYTES / 2), &b, k * BK, tile % across * BN + rank * (BN / 2), full + stage, 3);
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
  } else {
    hw::registers_more<232>();
    const int consumer = warp / 4;
    unsigned char* slab = slabs + consumer * SLAB_BYTES;
    float acc[BN / 2];
    int stage = 0;
    u32 phase = 0;
    for (int tile = cluster; tile < down * across; tile += clusters) {
      for (int k = 0; k < k_tiles; k++) {
        hw::mbarrier_wait(full + stage, phase);
        const u64 from_a = hw::wgmma_descriptor(shared + stage * STAGE_BYTES + consumer * 8192, 16, 1024);
        const u64 from_b = hw::wgmma_descriptor(shared + stage * STAGE_BYTES + A_BYTES, 16, 1024);
        hw::wgmma_fence();
        for (int step = 0; step < STEPS; step++)
          hw::wgmma<hw::bf16, BN, false, false>(acc, hw::wgmma_advance(from_a, step * 32), hw::wgmma_advance(from_b, step * 32), k + step > 0);
        hw::wgmma_commit();
        hw::wgmma_wait<0>();
        if (lane < 2) hw::mbarrier_arrive_cluster(empty + stage, lane);
        if (++stage == STAGES) stage = 0, phase ^= 1;
      }
      if (threadIdx.x % 128 == 0) hw::tma_store_wait_read<0>();
      hw::named_barrier(1 + consumer, 128);
      for (int j = 0; j < BN / 16; j++) {
        const u32 pairs[4] = {hw::pack_bf16(acc[8 * j], acc[8 * j + 1]), hw::pack_bf16(acc[8 * j + 2], acc[8 * j + 3]),
                              hw::pack_bf16(acc[8 * j + 4], acc[8 * j + 5]), hw::pack_bf16(acc[8 * j + 6], acc[8 * j + 7])};
        const int row = warp % 4 * 16 + lane / 8 % 2 * 8 + lane % 8, at = row * 128 + (2 * j + lane / 16) * 16;
        hw::stmatrix_x4(slab + (at ^ (at >> 3 & 0x70)), pairs);
      }
      hw::fence_proxy_async();
      hw::named_barrier(1 + consumer, 128);
      if (threadIdx.x % 128 == 0) {
        hw::tma_store(&d, slab, tile % across * BN, (tile / across * 2 + rank) * BM + consumer * 64);
        hw::tma_store_commit();
      }
    }
    if (threadIdx.x % 128 == 0) hw::tma_store_wait_read<0>();
  }
  hw::cluster_sync();
}
