// The core's own state: one block of threads at a time, each thread a fiber, all on one operating-system thread.
// Files: fibers.cpp (switching), scheduler.cpp (who runs next, barriers, deadlock), warp_ops.cpp (collectives),
// async_copy.cpp, race.cpp, profile.cpp, memory.cpp (guarded buffers), faults.cpp (reports, signals), launch.cpp.
#pragma once
#include <string>
#include <vector>

#include "runtime.h"

namespace emu {

constexpr u32 MAX_THREADS = 1024, WARP = 32, MAX_WARPS = MAX_THREADS / WARP;
constexpr u64 PAGE = 4096, GUARD = 4ull << 30;  // inaccessible on both sides of every mapping; address space only
constexpr u64 STACK_BYTES = 128 << 10;
constexpr u64 SHARED_MAP = 256 << 10;  // the largest dynamic shared memory of any GPU, rounded up
constexpr u8 POISON = 0xff;            // as fp32, fp16 and bf16 this is NaN

enum Policy { LOWEST_FIRST, HIGHEST_FIRST, RANDOM_PRIORITY };
enum CopyMode { COPY_LATE, COPY_EARLY, COPY_RANDOM };

// A set of threads.
struct ThreadSet {
  u64 words[MAX_THREADS / 64] = {};
  void add(u32 i) { words[i / 64] |= 1ull << (i % 64); }
  void remove(u32 i) { words[i / 64] &= ~(1ull << (i % 64)); }
  void add_lanes(u32 warp, u32 mask) { words[warp / 2] |= (u64)mask << (warp % 2 * 32); }
  u32 lanes(u32 warp) const { return (u32)(words[warp / 2] >> (warp % 2 * 32)); }
  void move_to(ThreadSet& other) {
    for (u32 i = 0; i < MAX_THREADS / 64; i++) other.words[i] |= words[i], words[i] = 0;
  }
};

// A copy that has been issued and whose bytes may arrive until it is waited for.
struct AsyncCopy { u8* shared; const u8* global; int bytes, source_bytes, line; };

struct Thread : Fiber {
  void* stack_pointer = nullptr;
  bool done = false;
  const char* waiting_for = nullptr;  // where it is parked, for the deadlock report
  u64 waiting_argument = 0;
  int waiting_line = 0;
  std::vector<AsyncCopy> copies;   // in order of issue
  std::vector<size_t> groups;      // end of each committed group in `copies`
  u64 warp_sync_tick = 0;          // race.cpp: the last warp barrier and who took part
  u32 warp_sync_mask = 0;
  u64 store_tick = 0;              // race.cpp: the last global store, and whether a fence came after it
  int store_line = 0;
  bool store_fenced = false;
  u64 fence_tick = 0;
};

struct Barrier {
  u32 arrived = 0;
  int line = 0;  // of the first to arrive
  ThreadSet waiting;
};

// A warp collective that some lanes have reached.
struct PendingCollective {
  bool used = false;
  u32 mask = 0, arrived = 0;
  Collective operation = nullptr;
  int line = 0;
  const char* name = "";
  void* arguments[WARP];
};
struct WarpState { PendingCollective pending[4]; };  // lanes may have parted into several masks

struct Counters { u64 switches = 0, collectives = 0, barriers = 0, copies = 0, blocks = 0; };

struct State : BlockView {
  Thread* threads = nullptr;
  u32 thread_count = 0, live = 0;
  ThreadSet ready;
  Barrier block_barrier;
  WarpState warps[MAX_WARPS];
  u8 priority[MAX_WARPS];
  Policy policy = LOWEST_FIRST;
  CopyMode copy_mode = COPY_LATE;
  bool preempt = false;
  u64 random = 1;
  bool race_checks = false, profile = false;
  void (*entry)(void**) = nullptr;
  void** arguments = nullptr;
  Counters counters;
  std::string fault_kind, fault_message;  // empty kind: no fault so far

  u64 next_random() {  // xorshift64
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    return random;
  }
};
extern State state;
static inline Thread* me() { return static_cast<Thread*>(current); }

// ---- fibers.cpp
void prepare_fiber(Thread& thread, void (*body)());
void switch_to(Thread* next);  // from a thread, or from the launcher, to a thread
[[noreturn]] void leave_to_launcher();
void run_from_launcher(Thread* first);  // returns when a thread has called leave_to_launcher
bool prepare_stacks();  // false where the host has no memory for them
bool on_fiber_stack(const u8* address, u32* thread);
bool stack_ran_out(const u8* address, const u8* stack_pointer);

// ---- scheduler.cpp
void thread_body();
void park(const char* what, u64 argument, int line);
void maybe_preempt();
void schedule_block();  // runs all threads of the block to their end, or to a fault

// ---- faults.cpp
[[noreturn]] void fail(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3)));
void note_fault(const char* kind, const std::string& message);  // first one wins
void install_signal_handlers();
void restore_signal_handlers();

// ---- memory.cpp
u8* map_guarded(u64 bytes);  // readable and writable pages of POISON between two guards; null where memory is short
void unmap_guarded(u8* begin, u64 bytes);
u64 round_to_pages(u64 bytes);
std::string describe_address(const u8* address);
const u8* first_altered(const u8* begin, const u8* end);  // the first byte that is not POISON, or null

// ---- shared-memory offsets: dynamic shared memory first, then the static section; -1 where p is neither
constexpr i64 STATIC_OFFSET = (i64)SHARED_MAP;
i64 shared_offset(const void* p, u64 bytes);
std::string shared_name(i64 offset);

// ---- race.cpp
void race_begin_launch();
void race_begin_block();
void race_access(i64 offset, u32 bytes, bool write, int line);
void race_copy_issued(i64 offset, u32 bytes, int line);
void race_copy_done(i64 offset, u32 bytes, int line);
void race_block_synced();
void race_warp_synced(u32 warp, u32 mask);
void race_global_store(int line);
void race_publish(int line);
void race_global_read(const void* p, int line);

// ---- profile.cpp
struct SiteCount { int access, line; u64 requests, transactions, ideal; };
void profile_begin_block();
void profile_access(const void* p, u32 bytes, Access access, int line);
void profile_end_block();
const std::vector<SiteCount>& profile_sites();
void profile_reset();

}  // namespace emu
