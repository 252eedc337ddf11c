// What a kernel library sees of the emulator core: the running thread and block, and the operations that may block,
// be checked or be counted. The kernel library holds no thread-local data and defines no state of its own, so that any
// number of them can be loaded in turn.
#pragma once
#include "cuda_words.h"

namespace emu {

// One CUDA thread. The core keeps its stack and its queues behind this.
struct Fiber {
  uint3 thread_idx;
  u32 index, lane, warp;
};

// One global buffer that a kernel may touch. `name` is for messages.
struct Span { u8* begin; u64 bytes; int writable; char name[24]; };

// The running block, and what every access is checked against.
struct BlockView {
  uint3 block_idx;
  dim3 block_dim, grid_dim;
  u8* shared;  // dynamic shared memory
  u32 shared_bytes;
  u8* static_shared;  // the section of __shared__ variables, if the kernel has any
  u32 static_bytes;
  bool observed;  // accesses go to the race detector, and perhaps the profiler
  i64 budget;     // operations left
  const Span* spans;
  u32 span_count;
};

enum Access { GLOBAL_READ, GLOBAL_WRITE, SHARED_READ, SHARED_WRITE };
using Collective = void (*)(void** arguments, u32 mask);

#pragma GCC visibility push(default)
extern Fiber* current;
extern BlockView* block;
[[noreturn]] void bad_shared_access(const void* p, u64 bytes, u64 alignment, Access access, int line);
[[noreturn]] void bad_global_access(const void* p, u64 bytes, u64 alignment, Access access, int line);
[[noreturn]] void out_of_budget(int line);
void observe(const void* p, u32 bytes, Access access, int line);

void block_barrier(int line);
// Runs `operation` once all lanes of `mask` have come; `aligned` demands that they come from one line.
void warp_collective(u32 mask, Collective operation, void* argument, const char* name, bool aligned, int line);
void copy_async(void* shared, const void* global, int bytes, int source_bytes, int line);
void copy_commit();
void copy_wait(int pending);
void fence_device();
u32 atomic_increment(u32* p, u32 last, int line);
#pragma GCC visibility pop

// ---------------------------------------------------------------- Hopper
// What the emulator's tensor map holds in its 128 bytes (device/emulator/tensor_map.py writes them).
enum Element : u32 { ELEMENT_PLAIN = 0, ELEMENT_TF32 = 1 };  // tf32: rounded as it is loaded
struct TensorView {
  u64 magic;
  u8* base;
  u64 extents[2];  // elements, innermost first
  u64 pitch;       // bytes from row to row
  u32 box[2];      // elements
  u32 element_bytes, swizzle;
  u32 element;
  u32 unused[17];
};
static_assert(sizeof(TensorView) == 128);
constexpr u64 TENSOR_MAGIC = 0x70616d20726f736eull;

// d[64][n] (+)= a[64][k] . b[k][n]: how elements are read, and which operands are MN-major.
enum WgmmaType { WGMMA_BF16, WGMMA_F16, WGMMA_TF32 };
struct WgmmaShape { WgmmaType type; int n; bool transposed_a, transposed_b; };

#pragma GCC visibility push(default)
void mbarrier_init(u64* b, u32 arrivals, int line);
void mbarrier_fence_init();
void mbarrier_arrive(u64* b, int line);
void mbarrier_arrive_cluster(u64* b, u32 cta, int line);
void mbarrier_expect(u64* b, u32 bytes, int line);
void mbarrier_wait(u64* b, u32 parity, int line);
bool mbarrier_test(u64* b, u32 parity, int line);
void fence_proxy_async();
void tensor_check(const void* map, const char* what, int line);
void policy_check(u64 policy, int line);
void tma_load(void* shared, const void* map, int x, int y, u64* b, u32 mask, bool multicast, int line);
void tma_store(const void* map, const void* shared, int x, int y, int line);
void tma_store_commit();
void tma_store_wait(int pending, int line);
u64 wgmma_descriptor(const void* shared, u32 leading_bytes, u32 stride_bytes, int line);
void wgmma_fence();
void wgmma_issue(const WgmmaShape* shape, float* d, u64 a, u64 b, bool accumulate, int line);
void wgmma_commit();
void wgmma_wait(int pending, int line);
void registers_change(int count, bool more, int line);
void named_barrier(int id, int threads, bool wait, int line);
u32 cluster_rank();
void cluster_arrive(bool release, int line);
void cluster_wait(int line);
const void* cluster_place(const void* p, u32 bytes, u32 alignment, u32 cta, int line);
#pragma GCC visibility pop
constexpr u64 POLICY = 0x12f0000000000000ull;  // what the policies carry, so that another word shows

// ---- arguments of the warp collectives
struct ShuffleArgument { u64 value; int source; u64 result; };
struct LdmatrixArgument { u32* registers; const void* row; int line; };
struct StmatrixArgument { const u32* registers; void* row; int line; };
struct MmaArgument { float* d; const u32* a; const u32* b; };
#pragma GCC visibility push(default)
void warp_barrier(void**, u32 mask);
void shuffle(void**, u32 mask);
void ldmatrix_x2(void**, u32), ldmatrix_x2_trans(void**, u32), ldmatrix_x4(void**, u32), ldmatrix_x4_trans(void**, u32);
void stmatrix_x4(void**, u32), stmatrix_x4_trans(void**, u32);
void mma_k8_f16(void**, u32), mma_k16_f16(void**, u32), mma_k16_bf16(void**, u32), mma_k8_tf32(void**, u32);
#pragma GCC visibility pop

static inline void spend(int line) {
  if (__builtin_expect(--block->budget < 0, 0)) out_of_budget(line);
}

static inline bool inside(const void* p, u64 bytes, const u8* begin, u64 size) {
  const u64 offset = (u64)((const u8*)p - begin);
  return offset < size && bytes <= size - offset;
}

// Every load and store that a kernel makes through hw:: is checked here, exactly, and reported with its line.
static inline void shared_access(const void* p, u32 bytes, u32 alignment, Access access, int line) {
  const BlockView& b = *block;
  const bool known = inside(p, bytes, b.shared, b.shared_bytes) || inside(p, bytes, b.static_shared, b.static_bytes);
  if (__builtin_expect(!known || ((uintptr_t)p & (alignment - 1)), 0)) bad_shared_access(p, bytes, alignment, access, line);
  spend(line);
  if (__builtin_expect(b.observed, 0)) observe(p, bytes, access, line);
}

static inline void global_access(const void* p, u32 bytes, u32 alignment, Access access, int line) {
  const BlockView& b = *block;
  bool known = false;
  for (u32 i = 0; i < b.span_count && !known; i++)
    known = inside(p, bytes, b.spans[i].begin, b.spans[i].bytes) && (access == GLOBAL_READ || b.spans[i].writable);
  if (__builtin_expect(!known || ((uintptr_t)p & (alignment - 1)), 0)) bad_global_access(p, bytes, alignment, access, line);
  spend(line);
  if (__builtin_expect(b.observed, 0)) observe(p, bytes, access, line);
}

// ---- entry: calls a kernel with its arguments, given as an array of pointers to them
struct Call {
  template <class... A> Call(void (*kernel)(A...), A... arguments) { kernel(arguments...); }
};
template <class... A> static inline void call(void (*kernel)(A...), void** arguments) {
  int i = 0;
  Call{kernel, *(A*)arguments[i++]...};  // braces: evaluated left to right
  (void)i;
}

}  // namespace emu

// The linker defines the ends of the section of __shared__ variables where there is one.
extern "C" __attribute__((weak, visibility("hidden"))) u8 __start_emu_shared[], __stop_emu_shared[];
// Exports a kernel under a symbol of its own.
#define EMU_EXPORT(symbol, kernel) \
  extern "C" __attribute__((visibility("default"))) void symbol(void** arguments) { emu::call(kernel, arguments); }
// Appended to every kernel source: the symbols that the launcher looks up. `blocks`: the least that must be resident on
// a multiprocessor, by the kernel's launch bounds.
#define EMU_ENTRY(kernel, blocks)                                                                          \
  EMU_EXPORT(emu_entry, kernel)                                                                            \
  extern "C" __attribute__((visibility("default"))) u32 emu_resident_blocks() { return blocks; }          \
  extern "C" __attribute__((visibility("default"))) u8* emu_shared_begin() { return __start_emu_shared; } \
  extern "C" __attribute__((visibility("default"))) u8* emu_shared_end() { return __stop_emu_shared; }
