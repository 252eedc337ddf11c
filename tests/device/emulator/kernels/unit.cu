// Small kernels, each one behaviour or one fault; `s` is 4 KB of shared memory.
#include "gemmtune/hw.cuh"

#define KERNEL extern "C" __global__ void
#define SHARED_FLOATS(name) HW_SHARED(raw_); float* name = reinterpret_cast<float*>(raw_)

// ---------------------------------------------------------------- behaviour
KERNEL shuffles(float* out) {
  const int t = threadIdx.x;
  float sum = (float)t;
  for (int flip = 16; flip; flip /= 2) sum += __shfl_xor_sync(~0u, sum, flip);
  out[t] = sum;
  out[32 + t] = __shfl_down_sync(~0u, (float)t, 3);
  out[64 + t] = (float)__shfl_up_sync(~0u, t, 2, 16);
  out[96 + t] = (float)__shfl_sync(~0u, (double)t, 5, 8);
}
KERNEL split_masks(float* out) {  // two halves of a warp, each with collectives of its own
  const int t = threadIdx.x;
  if (t % 2)
    out[t] = (float)__shfl_xor_sync(0xaaaaaaaau, t, 2);
  else
    out[t] = (float)__shfl_xor_sync(0x55555555u, t, 4);
}
KERNEL early_exit(float* out) {  // threads that have ended no longer take part in the barrier
  if (threadIdx.x == 5) return;
  hw::sync_block();
  out[threadIdx.x] = 1.f;
}
KERNEL static_shared(float* out) {
  __shared__ float s[64];
  const int t = threadIdx.x;
  hw::sts(&s[t], (float)t);
  hw::sync_block();
  out[t] = hw::lds(&s[63 - t]);
}
KERNEL uninitialised_shared(float* out) {
  SHARED_FLOATS(s);
  out[threadIdx.x] = s[threadIdx.x];
}
KERNEL warp_exchange(float* out) {  // ordered by a warp barrier alone
  SHARED_FLOATS(s);
  const int t = threadIdx.x;
  for (int i = 0; i < 4; i++) {
    hw::sts(s + t, (float)(t + i));
    hw::sync_warp();
    out[t] = hw::lds(s + (t ^ 1));
    hw::sync_warp();
  }
}
KERNEL neighbours(float* out) {  // bytes, halves and words side by side by different threads: no race
  HW_SHARED(s);
  const int t = threadIdx.x;
  hw::sts(s + t, (u8)t);
  hw::sts(reinterpret_cast<u16*>(s + 64) + t, (u16)t);
  hw::sync_block();
  out[t] = (float)hw::lds(s + (t ^ 1)) + (float)hw::lds(reinterpret_cast<u16*>(s + 64) + (t ^ 1));
}
KERNEL conflicts(float* out) {
  SHARED_FLOATS(s);
  const int t = threadIdx.x;
  hw::sts(s + t, 1.f);  // line 61: conflict-free
  hw::sync_block();
  const float x = hw::lds(s + t * 2);  // line 63: 2-way
  const float y = hw::lds(s + t * 32);  // line 64: 32-way
  const float z = hw::lds(s);  // line 65: broadcast
  hw::stg(out + t * 8, x + y + z);  // line 66: a sector each
}
KERNEL split_k(float* partial, u32* counter, float* out) {  // the last block to come adds up what all have stored
  __shared__ bool last;
  const int t = threadIdx.x;
  hw::stg(partial + blockIdx.x * 32 + t, (float)(t + blockIdx.x));
  hw::fence_device();
  hw::sync_block();
  if (t == 0) last = hw::atomic_inc(counter, gridDim.x - 1) == gridDim.x - 1;
  hw::sync_block();
  if (!last) return;
  hw::fence_device();
  float sum = 0.f;
  for (int i = 0; i < (int)gridDim.x; i++) sum += hw::ldg(partial + i * 32 + t);
  hw::stg(out + t, sum);
}

KERNEL copy_left_in_flight(float* out) {
  HW_SHARED(s);
  hw::cp_async<4>(s + 4 * threadIdx.x, out + threadIdx.x);
}

// ---------------------------------------------------------------- faults
KERNEL deadlock(float* out) {
  if (threadIdx.x < 32)
    __syncwarp();
  else if (threadIdx.x == 40)
    __syncwarp();
  else
    hw::sync_block();
}
KERNEL barrier_divergence(float* out) {
  if (threadIdx.x < 32)
    hw::sync_block();
  else
    hw::sync_block();
}
KERNEL mask_divergence(float* out) {
  if (threadIdx.x < 16)
    __syncwarp(0xffff);
  else
    __syncwarp();
}
KERNEL aligned_divergence(float* out) {
  SHARED_FLOATS(s);
  u32 r[4];
  if (threadIdx.x < 16)
    hw::ldmatrix_x4(r, s);
  else
    hw::ldmatrix_x4(r, s + 4);
  out[threadIdx.x] = (float)r[0];
}
KERNEL global_write_overrun(float* out) { hw::stg(out + 1024 + threadIdx.x, 1.f); }
KERNEL global_read_overrun(float* out) { out[threadIdx.x] = hw::ldg(out - 1 - (int)threadIdx.x); }
KERNEL plain_overrun(float* out) { out[5000000 + threadIdx.x] = 1.f; }
KERNEL vector_straddles_end(float* out) { hw::stg(reinterpret_cast<float2*>(out + 1023), make_float2(0.f, 0.f)); }
KERNEL input_written(const float* in) { hw::stg(const_cast<float*>(in), 1.f); }
KERNEL shared_overrun(float* out) {
  SHARED_FLOATS(s);
  hw::sts(s + 1024 + threadIdx.x, 1.f);
}
KERNEL plain_shared_overrun(float* out) {  // within the slack behind 4092 bytes: found at the end of the block
  SHARED_FLOATS(s);
  if (threadIdx.x == 3) *(volatile float*)(s + 1023) = 1.f;
}
KERNEL misaligned_vector(float* out) {
  SHARED_FLOATS(s);
  hw::sts(reinterpret_cast<float4*>(s + 1 + threadIdx.x), make_float4(0.f, 0.f, 0.f, 0.f));
}
KERNEL misaligned_plain(float* out) { *reinterpret_cast<float4*>(out + 1) = make_float4(0.f, 0.f, 0.f, 0.f); }
KERNEL misaligned_row(float* out) {
  HW_SHARED(s);
  u32 r[2];
  hw::ldmatrix_x2(r, s + threadIdx.x * 8);
  out[threadIdx.x] = (float)r[0];
}
KERNEL local_overrun(float* out) {
  float x[8];
  for (int i = 0; i <= 8 + (int)(threadIdx.x / 64); i++) x[i] = (float)i;
  out[threadIdx.x] = x[threadIdx.x % 8];
}
KERNEL stack_overrun(float* out) {
  volatile float x[65536];
  x[0] = 1.f;
  out[threadIdx.x] = x[0];
}
KERNEL runaway(float* out) {
  for (;;) hw::sync_warp();
}
KERNEL division_by_zero(int* out, int zero) { out[threadIdx.x] = 7 / zero; }
KERNEL bad_source_bytes(float* out) {
  HW_SHARED(s);
  hw::cp_async<16>(s + threadIdx.x * 16, out + threadIdx.x * 4, 17);
}

// ---------------------------------------------------------------- races
KERNEL race_write_read(float* out) {
  SHARED_FLOATS(s);
  const int t = threadIdx.x;
  hw::sts(s + t, 1.f);
  out[t] = hw::lds(s + (t + 1) % 64);
}
KERNEL race_read_write(float* out) {
  SHARED_FLOATS(s);
  const int t = threadIdx.x;
  hw::sts(s + t, 1.f);
  hw::sync_block();
  out[t] = hw::lds(s + (t + 1) % 64);
  hw::sts(s + t, 2.f);
}
KERNEL race_write_write(float* out) {
  SHARED_FLOATS(s);
  hw::sts(s, (float)threadIdx.x);
}
KERNEL race_across_warps(float* out) {  // a warp barrier does not order other warps
  SHARED_FLOATS(s);
  const int t = threadIdx.x;
  hw::sts(s + t, 1.f);
  hw::sync_warp();
  out[t] = hw::lds(s + (t ^ 32));
}
KERNEL race_in_partial_mask(float* out) {  // lanes 16..31 synchronise among themselves; lane 0 took no part
  SHARED_FLOATS(s);
  const int t = threadIdx.x;
  if (t == 0) hw::sts(s, 1.f);
  if (t >= 16) {
    __syncwarp(0xffff0000u);
    out[t] = hw::lds(s);
  }
}
KERNEL race_copy_not_waited(float* out) {
  HW_SHARED(s);
  const int t = threadIdx.x;
  hw::cp_async<4>(s + 4 * t, out + t);
  hw::cp_async_commit();
  out[t] = hw::lds(reinterpret_cast<float*>(s) + t);
}
KERNEL race_copy_behind_a_barrier(float* out) {  // the barrier alone does not end the copy
  HW_SHARED(s);
  const int t = threadIdx.x;
  hw::cp_async<4>(s + 4 * t, out + t);
  hw::cp_async_commit();
  hw::sync_block();
  const float x = hw::lds(reinterpret_cast<float*>(s) + (t ^ 1));
  if (x == 12345.f) out[t] = x;
}
KERNEL race_copy_without_barrier(float* out) {
  HW_SHARED(s);
  const int t = threadIdx.x;
  hw::cp_async<4>(s + 4 * t, out + t);
  hw::cp_async_commit();
  hw::cp_async_wait<0>();
  const float x = hw::lds(reinterpret_cast<float*>(s) + (t ^ 1));
  if (x == 12345.f) out[t] = x;
}
KERNEL race_copy_overwrites(float* out) {
  HW_SHARED(s);
  float* f = reinterpret_cast<float*>(s);
  const int t = threadIdx.x;
  hw::sts(f + t, 1.f);
  hw::sync_block();
  const float x = hw::lds(f + (t ^ 32));
  hw::cp_async<4>(s + 4 * t, out + t);
  if (x == 12345.f) out[t] = x;
}
KERNEL publish_without_acquire(float* partial, u32* counter, float* out) {
  __shared__ bool last;
  const int t = threadIdx.x;
  hw::stg(partial + t, 1.f);
  hw::fence_device();
  hw::sync_block();
  if (t == 0) last = hw::atomic_inc(counter, 0) == 0;
  hw::sync_block();
  if (last) hw::stg(out + t, hw::ldg(partial + t));
}
KERNEL publish_without_barrier(float* partial, u32* counter, float* out) {
  const int t = threadIdx.x;
  hw::stg(partial + t, 1.f);
  hw::fence_device();
  if (t == 0) hw::atomic_inc(counter, 0);
}
KERNEL publish_without_fence(float* partial, u32* counter, float* out) {
  const int t = threadIdx.x;
  hw::stg(partial + t, 1.f);
  hw::sync_block();
  if (t == 0) hw::atomic_inc(counter, 0);
}
KERNEL publish_with_one_fence(float* partial, u32* counter, float* out) {  // the fence of the publishing thread is cumulative
  const int t = threadIdx.x;
  hw::stg(partial + t, 1.f);
  hw::sync_block();
  if (t == 0) {
    hw::fence_device();
    hw::atomic_inc(counter, 0);
    hw::fence_device();
  }
  hw::sync_block();
  hw::stg(out + t, hw::ldg(partial + (t ^ 1)));
}

// ---------------------------------------------------------------- speed
KERNEL many_warp_barriers(int n) {
  for (int i = 0; i < n; i++) __syncwarp();
}
