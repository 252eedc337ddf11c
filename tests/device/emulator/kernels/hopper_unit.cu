// Small kernels, each one behaviour of Hopper's barriers; one block unless the test says otherwise.
#include "gemmtune/hopper.cuh"

#define KERNEL extern "C" __global__ void

// Warps 1 to 3 arrive and go on; warp 0 waits, and reads what they wrote.
KERNEL arrive_and_wait(float* out) {
  HW_SHARED(raw);
  float* values = reinterpret_cast<float*>(raw);
  const int t = threadIdx.x;
  if (t >= 32) {
    hw::sts(values + t, (float)t);
    hw::named_barrier_arrive(1, 128);
  } else {
    hw::named_barrier(1, 128);
    hw::stg(out + t, hw::lds(values + t + 32) + hw::lds(values + t + 64) + hw::lds(values + t + 96));
  }
}
// The same with the wrong warps waiting: nothing orders warp 1's reads after warp 2's writes.
KERNEL arrives_only(float* out) {
  HW_SHARED(raw);
  float* values = reinterpret_cast<float*>(raw);
  const int t = threadIdx.x;
  if (t < 32) hw::sts(values + t, (float)t);
  hw::named_barrier_arrive(1, 64);
  if (t >= 32) hw::stg(out + t, hw::lds(values + t - 32));
}
// A chain: thread 0 hands a value through an mbarrier to thread 32, which hands it through another to thread 64.
KERNEL chain(float* out, int broken) {
  HW_SHARED(raw);
  u64* bars = reinterpret_cast<u64*>(raw);
  float* value = reinterpret_cast<float*>(raw + 64);
  const int t = threadIdx.x;
  if (t == 0) hw::mbarrier_init(bars, 1), hw::mbarrier_init(bars + 1, 1), hw::mbarrier_fence_init();
  hw::sync_block();
  if (t == 0) {
    hw::sts(value, 7.f);
    hw::mbarrier_arrive(bars);
  } else if (t == 32) {
    if (!broken) hw::mbarrier_wait(bars, 0);
    hw::mbarrier_arrive(bars + 1);
  } else if (t == 64) {
    hw::mbarrier_wait(bars + 1, 0);
    hw::stg(out, hw::lds(value));
  }
}
// Polls: one thread tests until another has arrived.
KERNEL poll(float* out) {
  HW_SHARED(raw);
  u64* bar = reinterpret_cast<u64*>(raw);
  if (threadIdx.x == 0) hw::mbarrier_init(bar, 1), hw::mbarrier_fence_init();
  hw::sync_block();
  if (threadIdx.x == 0) {
    while (!hw::mbarrier_test(bar, 0)) {}
    hw::stg(out, 1.f);
  } else if (threadIdx.x == 33) {
    hw::mbarrier_arrive(bar);
  }
}
// Phases go on: 5 rounds of one barrier.
KERNEL phases(float* out) {
  HW_SHARED(raw);
  u64* bar = reinterpret_cast<u64*>(raw);
  if (threadIdx.x == 0) hw::mbarrier_init(bar, 32), hw::mbarrier_fence_init();
  hw::sync_block();
  int rounds = 0;
  for (int i = 0; i < 5; i++) {
    hw::mbarrier_arrive(bar);
    hw::mbarrier_wait(bar, i & 1);
    rounds++;
  }
  hw::stg(out + threadIdx.x, (float)rounds);
}
// Blocks of a cluster meet: each tells its rank, and its place in the grid, after all have come.
KERNEL ranks(float* out) {
  hw::cluster_arrive();
  hw::cluster_wait();
  const int block = blockIdx.x + gridDim.x * blockIdx.y;
  if (threadIdx.x == 0) hw::stg(out + block, (float)hw::cluster_rank());
  hw::cluster_sync();
}
// One warp of a block waits for its block, whose other warps wait for the cluster.
KERNEL cluster_without_one(float* out) {
  if (hw::cluster_rank() == 1 && threadIdx.x < 32)
    hw::sync_block();
  else
    hw::cluster_sync();
}
// A block of a cluster reads what another left, after a barrier of the cluster that orders it, orders nothing, or is
// none; and the blocks meet again before they end, or do not.
KERNEL read_peer(float* out, int cta, int offset, int before, int after) {
  HW_SHARED(raw);
  hw::Quad* quads = reinterpret_cast<hw::Quad*>(raw);
  const int t = threadIdx.x, rank = (int)hw::cluster_rank();
  hw::sts(quads + t, hw::Quad{ {(float)rank, (float)t, 0.f, 1.f} });
  if (before == 1) hw::cluster_sync();
  if (before == 2) hw::cluster_arrive_relaxed(), hw::cluster_wait();
  if (before == 3) hw::sync_block();
  const hw::Quad q = hw::lds_cluster(reinterpret_cast<const hw::Quad*>(raw + t % 32 * 16 + offset), cta < 0 ? rank ^ 1 : cta);
  hw::stg(out + rank * 32 + t % 32, 10 * q.v[0] + q.v[3]);
  if (after == 1) hw::cluster_arrive_relaxed(), hw::cluster_wait();
  if (after == 2) {
    if (rank == 1) hw::sts(quads + t, hw::Quad{ {0.f, 0.f, 0.f, 0.f} });
    hw::cluster_sync();
  }
}
