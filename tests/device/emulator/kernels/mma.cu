// D(fp32) = A . B in bf16, A [M,K], B [K,N], row-major: 128x64x32 tiles, 4 warps of 64x32, three stages of cp.async,
// padded rows, ldmatrix. The test puts `constexpr int N, K, BUG` in front; BUG plants one mistake. Pitches are
// multiples of 8 elements.
#include "gemmtune/hw.cuh"

constexpr int BM = 128, BN = 64, BK = 32, STAGES = 3, A_ROW = BK + 8, B_ROW = BN + 8;
constexpr int A_STAGE = BM * A_ROW, B_STAGE = BK * B_ROW;  // elements

static __device__ __forceinline__ int clamp_bytes(int elements) {
  return elements <= 0 ? 0 : elements >= 8 ? 16 : elements * 2;
}

extern "C" __global__ void __launch_bounds__(128)
mma(const hw::bf16* __restrict__ a, const hw::bf16* __restrict__ b, float* __restrict__ d, int m, i64 lda, i64 ldb, i64 ldd) {
  HW_SHARED(raw);
  hw::bf16* as = reinterpret_cast<hw::bf16*>(raw);
  hw::bf16* bs = as + STAGES * A_STAGE;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, wm = warp / 2 * 64, wn = warp % 2 * 32;
  const int m0 = (int)blockIdx.y * BM, n0 = (int)blockIdx.x * BN, steps = (K + BK - 1) / BK;

  auto load = [&](int t) {
    const int stage = t % STAGES, k0 = t * BK;
    for (int i = 0; i < BM * BK / 8 / 128; i++) {
      const int chunk = tid + i * 128, row = chunk / 4, k = chunk % 4 * 8;
      const int bytes = m0 + row < m ? clamp_bytes(K - (k0 + k)) : 0;
      hw::cp_async<16>(as + stage * A_STAGE + row * A_ROW + k, bytes ? a + (i64)(m0 + row) * lda + k0 + k : a, bytes);
    }
    for (int i = 0; i < BK * BN / 8 / 128; i++) {
      const int chunk = tid + i * 128, row = chunk / 8, column = chunk % 8 * 8;
      const int bytes = k0 + row < K ? clamp_bytes(N - (n0 + column)) : 0;
      hw::cp_async<16>(bs + stage * B_STAGE + row * B_ROW + column, bytes ? b + (i64)(k0 + row) * ldb + n0 + column : b, bytes);
    }
  };

  float acc[4][4][4] = {};
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < steps) load(s);
    hw::cp_async_commit();
  }
  for (int t = 0; t < steps; t++) {
    hw::cp_async_wait<BUG == 3 ? STAGES - 1 : STAGES - 2>();  // 3: one group too lax
    if (BUG == 4) {                                          // 4: overwrites a stage that slower warps still read
      if (t + STAGES - 1 < steps) load(t + STAGES - 1);
      hw::cp_async_commit();
    }
    if (BUG != 1) hw::sync_block();                          // 1: missing barrier
    if (BUG != 4) {
      if (t + STAGES - 1 < steps) load(t + STAGES - 1);
      hw::cp_async_commit();
    }
    const hw::bf16 *at = as + t % STAGES * A_STAGE, *bt = bs + t % STAGES * B_STAGE;
    for (int k = 0; k < BK; k += 16) {
      u32 fa[4][4], fb[4][2];
      for (int i = 0; i < 4; i++) hw::ldmatrix_x4(fa[i], at + (wm + i * 16 + lane % 16) * A_ROW + k + lane / 16 * 8);
      for (int j = 0; j < 2; j++) {
        u32 r[4];
        hw::ldmatrix_x4_trans(r, bt + (k + lane % 16) * B_ROW + wn + j * 16 + lane / 16 * 8);
        fb[2 * j][0] = r[0], fb[2 * j][1] = r[1], fb[2 * j + 1][0] = r[2], fb[2 * j + 1][1] = r[3];
      }
      for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) hw::mma_m16n8k16_bf16(acc[i][j], fa[i], fb[j]);
    }
  }
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++)
      for (int q = 0; q < 4; q++) {
        const int row = m0 + wm + i * 16 + lane / 4 + q / 2 * 8, column = n0 + wn + j * 8 + lane % 4 * 2 + q % 2;
        if (row < m && column < N) hw::stg(d + (i64)row * ldd + column, acc[i][j][q]);
      }
}
