// CUDA's built-in variables and functions, on the emulator core. Each takes the line of its call for messages.
#pragma once
#include "runtime.h"

#define threadIdx (emu::current->thread_idx)
#define blockIdx (emu::block->block_idx)
#define blockDim (emu::block->block_dim)
#define gridDim (emu::block->grid_dim)

static inline void __syncthreads(int line = __builtin_LINE()) { emu::block_barrier(line); }
static inline void __syncwarp(u32 mask = ~0u, int line = __builtin_LINE()) {
  emu::warp_collective(mask, emu::warp_barrier, nullptr, "__syncwarp", false, line);
}
static inline void __threadfence() { emu::fence_device(); }
static inline u32 atomicInc(u32* p, u32 last, int line = __builtin_LINE()) { return emu::atomic_increment(p, last, line); }

namespace emu {
template <class T> static inline T exchange(u32 mask, T value, int source, const char* name, int line) {
  static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes");
  ShuffleArgument argument{0, source, 0};
  __builtin_memcpy(&argument.value, &value, sizeof(T));
  warp_collective(mask, shuffle, &argument, name, false, line);
  T result;
  __builtin_memcpy(&result, &argument.result, sizeof(T));
  return result;
}
}  // namespace emu

// A lane whose source lies outside its segment of `width` lanes keeps its own value.
template <class T> static inline T __shfl_sync(u32 mask, T value, int source, int width = 32, int line = __builtin_LINE()) {
  const int lane = (int)emu::current->lane;
  return emu::exchange(mask, value, (lane & ~(width - 1)) | (source & (width - 1)), "__shfl_sync", line);
}
template <class T> static inline T __shfl_xor_sync(u32 mask, T value, int flip, int width = 32, int line = __builtin_LINE()) {
  const int lane = (int)emu::current->lane, source = lane ^ flip;
  const bool beyond = (source & ~(width - 1)) > (lane & ~(width - 1));
  return emu::exchange(mask, value, beyond ? lane : source, "__shfl_xor_sync", line);
}
template <class T> static inline T __shfl_down_sync(u32 mask, T value, u32 delta, int width = 32, int line = __builtin_LINE()) {
  const int lane = (int)emu::current->lane, source = lane + (int)delta;
  const bool beyond = (source & ~(width - 1)) != (lane & ~(width - 1));
  return emu::exchange(mask, value, beyond ? lane : source, "__shfl_down_sync", line);
}
template <class T> static inline T __shfl_up_sync(u32 mask, T value, u32 delta, int width = 32, int line = __builtin_LINE()) {
  const int lane = (int)emu::current->lane, source = lane - (int)delta;
  const bool beyond = source < (lane & ~(width - 1));
  return emu::exchange(mask, value, beyond ? lane : source, "__shfl_up_sync", line);
}
