// The core's own state: one cluster of blocks at a time (mostly of one block), each thread a fiber, all on one
// operating-system thread.
// Files: fibers.cpp (switching), scheduler.cpp (who runs next, block barrier, deadlock), warp_ops.cpp (collectives),
// async_copy.cpp, race.cpp, profile.cpp, memory.cpp (guarded buffers), faults.cpp (reports, signals), launch.cpp; and
// for Hopper mbarrier.cpp, tma.cpp, wgmma.cpp, barriers.cpp (named, cluster, warpgroups, registers).
#pragma once
#include <string>
#include <vector>

#include "runtime.h"

namespace emu {

constexpr u32 MAX_THREADS = 1024, WARP = 32, MAX_WARPS = MAX_THREADS / WARP;
constexpr u32 WARPGROUP = 128, MAX_WARPGROUPS = MAX_THREADS / WARPGROUP;
constexpr u32 MAX_CLUSTER = 8, MAX_FIBERS = 4096;  // threads of a whole cluster
constexpr u32 MAX_MBARRIERS = 64;                  // of a block
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

// What happened before: for every slot (a thread, or an asynchronous actor) of the cluster the tick before which its
// accesses are known to be over (race.cpp). Empty where races are not looked for.
using Clock = std::vector<u64>;

// A wgmma that has been issued, as one thread gave it, and an accumulator array that such operations work on.
struct WgmmaOp {
  const WgmmaShape* shape;
  u64 a, b;
  bool accumulate;
  u32 accumulator;  // index in Thread::accumulators
  int line;
};
struct Accumulator {
  float* d;
  u32 count, in_flight;         // floats; operations issued and not waited for
  std::vector<float> values;    // while in flight `d` holds poison, and this the numbers
};
struct TensorStore { TensorView map; u8* shared; int x, y, line; };

struct BlockState;

struct Thread : Fiber {
  BlockState* home = nullptr;
  u32 fiber = 0;  // index among the cluster's threads
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
  std::vector<WgmmaOp> wgmmas;          // in order of issue
  std::vector<size_t> wgmma_groups;     // end of each committed group in `wgmmas`
  std::vector<Accumulator> accumulators;
  bool wgmma_fenced = false;
  std::vector<TensorStore> stores;
  std::vector<size_t> store_groups;
  u64 proxy_fence_tick = 0;             // tma.cpp
  bool cluster_arrived = false;
  u64 cluster_phase = 0;
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

struct NamedBarrier {
  u32 expected = 0, arrived = 0;
  int line = 0;
  ThreadSet came, waiting;
  Clock gathering, completed;
};

struct Mbarrier {
  u64* word;
  u32 arrivals, pending;
  i64 bytes;       // announced and not yet here; negative while bytes have come that nobody announced so far
  u32 phase, in_flight;
  bool fenced;
  u32 initialiser;
  u64 stamp;       // race.cpp: when it was initialised
  int line;        // of the initialisation
  ThreadSet waiting;
  Clock gathering, completed;
};

// Four warps that act together: a meeting of their 128 threads, and the registers each of those has.
struct WarpgroupState {
  u32 arrived = 0, registers = 0;
  int line = 0, argument = 0;
  const char* name = "";
};

// One block of the running cluster.
struct BlockState {
  u32 rank = 0, live = 0;
  uint3 block_idx;
  u8* shared = nullptr;
  Thread* threads = nullptr;
  bool profiled = false;
  ThreadSet ready;
  Barrier block_barrier;
  WarpState warps[MAX_WARPS];
  u8 priority[MAX_WARPS];
  NamedBarrier named[16];
  WarpgroupState groups[MAX_WARPGROUPS];
  ThreadSet register_waiters;
  std::vector<Mbarrier> mbarriers;
  std::vector<Thread*> storing;  // threads whose TMA stores may still read shared memory
};

struct Counters { u64 switches = 0, collectives = 0, barriers = 0, copies = 0, blocks = 0; };

struct State : BlockView {
  BlockState blocks[MAX_CLUSTER];
  u32 cluster_size = 1, resident_blocks = 1;
  BlockState* home = nullptr;  // the block whose thread runs; what BlockView holds of a block is this one's
  Thread* threads = nullptr;   // of this block
  u32 thread_count = 0;
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
static inline BlockState& home() { return *state.home; }

// ---- fibers.cpp
void prepare_fiber(Thread& thread, void (*body)());
void switch_to(Thread* next);  // from a thread, or from the launcher, to a thread
[[noreturn]] void leave_to_launcher();
void run_from_launcher(Thread* first);  // returns when a thread has called leave_to_launcher
bool prepare_stacks(u32 count);  // false where the host has no memory for them
bool on_fiber_stack(const u8* address, u32* thread);
bool stack_ran_out(const u8* address, const u8* stack_pointer);

// ---- scheduler.cpp
void thread_body();
void park(const char* what, u64 argument, int line);
void maybe_preempt();
void step_aside();         // lets somebody else go on, or a copy arrive, before a thread looks again
void enter_block(BlockState& next);  // makes state's view that of `next`
void schedule_cluster();   // runs all threads of the cluster to their end, or to a fault

// ---- barriers.cpp
void begin_barriers();
void begin_hopper(BlockState& b);
// A meeting of the 128 threads of a warpgroup at one line: true for the last to come, who calls release_warpgroup after
// what it does for all; the others return false when it has.
bool meet_warpgroup(const char* name, int argument, int line);
void release_warpgroup();
void release_cluster_barrier_if_complete();

// ---- mbarrier.cpp
u32 find_mbarrier(BlockState& where, u64* b, const char* what, int line);  // its index
void bytes_arrive(BlockState& where, u32 mbarrier, u32 bytes, int line);

// ---- tma.cpp
void begin_tensor_copies();
bool land_one_load();    // false where none is in flight
void maybe_land_load();  // by chance, where the schedule says so
void check_block_exit();
void check_stores_exit();
void proxy_begin(u32 rank);
void proxy_write(i64 offset, u32 bytes, int line);  // an ordinary write, which the async proxy does not see yet
void proxy_use(i64 offset, u32 bytes, const char* deed, int line);

// ---- wgmma.cpp
void check_wgmma_exit();

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
void race_begin_cluster();
void race_access(i64 offset, u32 bytes, bool write, int line);
void race_peer_read(BlockState& from, i64 offset, u32 bytes, int line);
void race_copy_issued(i64 offset, u32 bytes, int line);
void race_copy_done(i64 offset, u32 bytes, int line);
void race_block_synced();
void race_warp_synced(u32 warp, u32 mask);
void race_global_store(int line);
void race_publish(int line);
void race_global_read(const void* p, int line);
// Releases and acquires through a barrier's clock, by the running thread.
void race_release(Clock& clock);
void race_acquire(const Clock& clock);
// Asynchronous actors have slots of their own behind the threads: warpgroups (wgmma) and mbarriers (loads that they count).
u32 wgmma_slot(u32 warpgroup);
u32 mbarrier_slot(u32 index);
void race_async_read(i64 offset, u32 bytes, u32 slot, int line);  // begins, or goes on until now
void race_async_reads_done(u32 slot, u32 first, u32 count);       // the threads first .. first + count - 1 know it
void race_load_issued(BlockState& to, i64 offset, u32 bytes, u32 slot, int line);
void race_load_done(BlockState& to, i64 offset, u32 bytes, u32 slot, int line, Clock& clock);
u64 race_stamp(int line);
bool race_knows(u64 stamp);

// ---- profile.cpp
struct SiteCount { int access, line; u64 requests, transactions, ideal; };
void profile_begin_block();
void profile_access(const void* p, u32 bytes, Access access, int line);
void profile_end_block();
const std::vector<SiteCount>& profile_sites();
void profile_reset();

}  // namespace emu
