// D = A . B in fp32, A [M,K], B [K,N], row-major: 64x64x16 tiles, 256 threads of 4x4 outputs, padded shared memory, two
// buffers filled through registers. The test puts `constexpr int N, K, BUG` in front; BUG plants one mistake.
#include "gemmtune/hw.cuh"

constexpr int BM = 64, BN = 64, BK = 16, PAD = 4;
constexpr int A_ROW = BM + PAD, B_ROW = BN + PAD;

extern "C" __global__ void __launch_bounds__(256)
simt(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ d, int m, i64 lda, i64 ldb, i64 ldd) {
  HW_SHARED(raw);
  float* as = reinterpret_cast<float*>(raw);     // [2][BK][A_ROW]
  float* bs = as + 2 * BK * A_ROW;               // [2][BK][B_ROW]
  const int tid = threadIdx.x, tx = tid % 16, ty = tid / 16;
  const int m0 = (int)blockIdx.y * BM, n0 = (int)blockIdx.x * BN;
  const int a_row = tid / 4, a_k = tid % 4 * 4, b_k = tid / 16, b_column = tid % 16 * 4;
  float next_a[4], next_b[4], acc[4][4] = {};

  auto load = [&](int k0) {
    for (int i = 0; i < 4; i++) {
      const bool row_ok = BUG == 4 || m0 + a_row < m;   // 4: reads rows past the end of A
      const bool k_ok = BUG == 5 || k0 + a_k + i < K;   // 5: no guard of the K tail
      next_a[i] = row_ok && k_ok ? hw::ldg(a + (i64)(m0 + a_row) * lda + k0 + a_k + i) : 0.f;
      const bool b_ok = (BUG == 5 || k0 + b_k < K) && n0 + b_column + i < N;
      next_b[i] = b_ok ? hw::ldg(b + (i64)(k0 + b_k) * ldb + n0 + b_column + i) : 0.f;
    }
  };
  auto store = [&](int buffer) {
    const int row = BUG == 2 ? A_ROW - 1 : A_ROW;       // 2: padding off by one
    for (int i = 0; i < 4; i++) hw::sts(as + buffer * BK * A_ROW + (a_k + i) * row + a_row, next_a[i]);
    hw::sts(reinterpret_cast<float4*>(bs + (buffer * BK + b_k) * B_ROW + b_column), make_float4(next_b[0], next_b[1], next_b[2], next_b[3]));
  };

  load(0);
  store(0);
  hw::sync_block();
  const int steps = BUG == 6 ? K / BK : (K + BK - 1) / BK;  // 6: drops the K tail
  for (int t = 0; t < steps; t++) {
    if (t + 1 < steps) load((t + 1) * BK);
    for (int k = 0; k < BK; k++) {
      const float4 x = hw::lds(reinterpret_cast<const float4*>(as + (t % 2 * BK + k) * A_ROW + ty * 4));
      const float4 y = hw::lds(reinterpret_cast<const float4*>(bs + (t % 2 * BK + k) * B_ROW + tx * 4));
      const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
      for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) acc[i][j] += xs[i] * ys[j];
    }
    if (t + 1 < steps) store((t + 1) % 2);
    if (BUG != 1) hw::sync_block();                         // 1: missing barrier
  }

  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) {
      const int row = m0 + ty * 4 + i, column = n0 + tx * 4 + j;
      if (BUG == 7 && row == m - 1 && column == N - 1) acc[i][j] += 0.01f * K;  // 7: one wrong corner
      if ((BUG == 3 || row < m) && column < N)                                  // 3: writes rows past the end of D
        hw::stg(d + (i64)row * ldd + (BUG == 8 ? column ^ 1 : column), acc[i][j]);  // 8: wrong column in the epilogue
    }
}
