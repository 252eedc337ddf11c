// One small kernel an intrinsic: raw bits in, raw bits out, one block. The same text runs on a GPU (record.py) and in
// the emulator (test_golden_vectors.py).
#include "gemmtune/hw.cuh"

#define KERNEL extern "C" __global__ void

// ---------------------------------------------------------------- mma: fragments of each lane, [32][n]
#define MMA(NAME, A, B)                                                                             \
  KERNEL golden_##NAME(const u32* in_a, const u32* in_b, const float* in_d, float* out, int count) { \
    const int lane = threadIdx.x;                                                                   \
    for (int i = 0; i < count; i++) {                                                               \
      u32 a[A], b[B];                                                                               \
      float d[4];                                                                                   \
      for (int j = 0; j < A; j++) a[j] = in_a[(i * 32 + lane) * A + j];                             \
      for (int j = 0; j < B; j++) b[j] = in_b[(i * 32 + lane) * B + j];                             \
      for (int j = 0; j < 4; j++) d[j] = in_d[(i * 32 + lane) * 4 + j];                             \
      hw::NAME(d, a, b);                                                                            \
      for (int j = 0; j < 4; j++) out[(i * 32 + lane) * 4 + j] = d[j];                              \
    }                                                                                               \
  }
MMA(mma_m16n8k8_f16, 2, 1)
MMA(mma_m16n8k16_f16, 4, 2)
MMA(mma_m16n8k16_bf16, 4, 2)
MMA(mma_m16n8k8_tf32, 4, 2)

// ---------------------------------------------------------------- ldmatrix: 512 bytes of rows, a row number for each lane
#define LDMATRIX(NAME, COUNT)                                                                       \
  KERNEL golden_##NAME(const u32* rows, const int* row_of_lane, u32* out) {                         \
    HW_SHARED(shared);                                                                              \
    u32* words = reinterpret_cast<u32*>(shared);                                                    \
    const int lane = threadIdx.x;                                                                   \
    for (int i = lane; i < 128; i += 32) hw::sts(words + i, rows[i]);                               \
    hw::sync_block();                                                                               \
    u32 r[COUNT];                                                                                   \
    hw::NAME(r, shared + row_of_lane[lane] * 16);                                                   \
    for (int j = 0; j < COUNT; j++) out[lane * COUNT + j] = r[j];                                   \
  }
LDMATRIX(ldmatrix_x4, 4)
LDMATRIX(ldmatrix_x4_trans, 4)
LDMATRIX(ldmatrix_x2, 2)
LDMATRIX(ldmatrix_x2_trans, 2)

// ---------------------------------------------------------------- cp.async: thread t copies its cell, t source bytes of it
#define CP_ASYNC(BYTES)                                                                             \
  KERNEL golden_cp_async_##BYTES(const u8* in, u8* out) {                                           \
    HW_SHARED(shared);                                                                              \
    const int t = threadIdx.x;                                                                      \
    for (int i = 0; i < BYTES; i++) hw::sts(shared + t * BYTES + i, (u8)0xa5);                      \
    hw::sync_block();                                                                               \
    hw::cp_async<BYTES>(shared + t * BYTES, in + t * BYTES, t <= BYTES ? t : BYTES);                \
    hw::cp_async_commit();                                                                          \
    hw::cp_async_wait<0>();                                                                         \
    hw::sync_block();                                                                               \
    for (int i = 0; i < BYTES; i++) out[t * BYTES + i] = hw::lds(shared + t * BYTES + i);           \
  }
CP_ASYNC(4)
CP_ASYNC(8)
CP_ASYNC(16)

// Two groups into one cell's halves; the wait leaves the second in flight, then takes it too.
KERNEL golden_cp_async_groups(const u8* in, u8* out) {
  HW_SHARED(shared);
  const int t = threadIdx.x;
  hw::cp_async<8>(shared + t * 16, in + t * 16);
  hw::cp_async_commit();
  hw::cp_async<8>(shared + t * 16 + 8, in + t * 16 + 8);
  hw::cp_async_commit();
  hw::cp_async_wait<1>();
  for (int i = 0; i < 8; i++) out[t * 16 + i] = hw::lds(shared + t * 16 + i);
  hw::cp_async_wait<0>();
  for (int i = 8; i < 16; i++) out[t * 16 + i] = hw::lds(shared + t * 16 + i);
}

// ---------------------------------------------------------------- conversions, `count` a thread block
KERNEL golden_from_float_f16(const float* in, u16* out, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = hw::from_float<hw::f16>(in[i]).bits;
}
KERNEL golden_from_float_bf16(const float* in, u16* out, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = hw::from_float<hw::bf16>(in[i]).bits;
}
KERNEL golden_to_float_f16(const u16* in, u32* out, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    hw::f16 x;
    x.bits = in[i];
    out[i] = __float_as_uint(hw::to_float(x));
  }
}
KERNEL golden_to_float_bf16(const u16* in, u32* out, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    hw::bf16 x;
    x.bits = in[i];
    out[i] = __float_as_uint(hw::to_float(x));
  }
}
KERNEL golden_to_tf32_rna(const float* in, u32* out, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = hw::to_tf32_rna(in[i]);
}
KERNEL golden_to_tf32_rn(const float* in, u32* out, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = hw::to_tf32_rn(in[i]);
}

// ---------------------------------------------------------------- atomic_inc: one thread, so that the order is known
KERNEL golden_atomic_inc(const u32* last, u32* counters, u32* out, int count) {
  for (int i = 0; i < count; i++)
    for (int j = 0; j < 6; j++) out[i * 6 + j] = hw::atomic_inc(counters + i, last[i]);
}
