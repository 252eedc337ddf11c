// The interface to Python (device/emulator/launch.py holds the same structures): guarded buffers and launches.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "core.h"
#include "numbers.h"

#define EMU_API extern "C" __attribute__((visibility("default")))

namespace {

struct Request {
  void (*entry)(void**);
  void** arguments;
  u32 grid[3], block[3], cluster[3];
  u32 dynamic_shared, resident_blocks;
  u8* static_shared;
  u64 static_bytes;
  const u32* block_ids;  // count triples: the blocks to run, in this order, a cluster's in the order of their ranks
  u64 block_count;
  const emu::Span* spans;
  u32 span_count;
  int policy, copy_mode, preempt, race_checks;
  i64 profiled_block;  // position in block_ids, -1 for none
  u64 seed;
  i64 budget;  // operations for the whole launch
};

struct Result {
  char kind[32];  // empty where all is well
  char message[1024];
  u64 switches, collectives, barriers, copies, blocks, operations;
};

emu::Thread* threads = nullptr;
u8* shared_maps[emu::MAX_CLUSTER];

bool prepare(u32 cluster, u32 count) {
  if (!threads) threads = new emu::Thread[emu::MAX_FIBERS];
  for (u32 i = 0; i < cluster; i++)
    if (!shared_maps[i] && !(shared_maps[i] = emu::map_guarded(emu::SHARED_MAP))) return false;
  return emu::prepare_stacks(cluster * count);
}

u64 padded_shared() { return (emu::state.shared_bytes + 1023) / 1024 * 1024; }

void begin_cluster(const Request& request, u64 position) {
  emu::State& s = emu::state;
  s.random = (request.seed + 1) * 0x9E3779B97F4A7C15ull ^ (position + 1) * 0xD1B54A32D192ED03ull;
  if (!s.random) s.random = 1;
  for (int i = 0; i < 4; i++) s.next_random();
  if (s.static_bytes) memset(s.static_shared, emu::POISON, s.static_bytes);
  if (s.race_checks) emu::race_begin_cluster();
  emu::begin_barriers();
  for (u32 rank = 0; rank < s.cluster_size; rank++) {
    emu::BlockState& b = s.blocks[rank];
    const u32* id = request.block_ids + 3 * (position + rank);
    b.rank = rank;
    b.block_idx = {id[0], id[1], id[2]};
    b.threads = threads + rank * s.thread_count;
    b.shared = shared_maps[rank] + emu::SHARED_MAP - padded_shared();
    b.profiled = (i64)(position + rank) == request.profiled_block;
    memset(b.shared, emu::POISON, padded_shared());
    emu::begin_hopper(b);
    if (b.profiled) emu::profile_begin_block();
  }
}

void end_block(emu::BlockState& b) {
  emu::State& s = emu::state;
  s.counters.blocks++;
  const u8* end = b.shared + padded_shared();
  const u8* altered = emu::first_altered(b.shared + s.shared_bytes, end);
  if (altered) {
    char text[200];
    snprintf(text, sizeof text, "block (%u,%u,%u): something wrote past the end of shared memory, at byte %lld of %u",
             b.block_idx.x, b.block_idx.y, b.block_idx.z, (i64)(altered - b.shared), s.shared_bytes);
    emu::note_fault("out_of_bounds", text);
  }
  if (b.profiled && s.fault_kind.empty()) emu::profile_end_block();
}

}  // namespace

// A guarded buffer of `bytes`, its end at the upper guard (rounded to 16 bytes) or its begin at the lower one.
EMU_API u8* emu_allocate(u64 bytes, int at_end) {
  u8* begin = emu::map_guarded(bytes);
  if (!begin) return nullptr;
  return at_end ? begin + emu::round_to_pages(bytes) - (bytes + 15) / 16 * 16 : begin;
}

static u8* first_page(u8* begin) { return (u8*)((uintptr_t)begin / emu::PAGE * emu::PAGE); }

EMU_API void emu_free(u8* begin, u64 bytes) { emu::unmap_guarded(first_page(begin), bytes); }

// Makes a buffer read-only for every kind of access, or writable again.
EMU_API int emu_protect(u8* begin, u64 bytes, int writable) {
  return mprotect(first_page(begin), emu::round_to_pages(bytes), writable ? PROT_READ | PROT_WRITE : PROT_READ);
}

// Offset of the first byte that is no longer poison, over the whole pages of the buffer; INT64_MIN where there is none.
EMU_API i64 emu_first_altered(u8* begin, u64 bytes) {
  const u8* low = first_page(begin);
  const u8* found = emu::first_altered(low, low + emu::round_to_pages(bytes));
  return found ? found - begin : INT64_MIN;
}

EMU_API void emu_launch(const Request* request, Result* result) {
  emu::State& s = emu::state;
  memset(result, 0, sizeof *result);
  s.fault_kind.clear();
  s.fault_message.clear();
  const u64 count = (u64)request->block[0] * request->block[1] * request->block[2];
  const u64 cluster = (u64)request->cluster[0] * request->cluster[1] * request->cluster[2];
  if (!cluster || cluster > emu::MAX_CLUSTER || cluster * count > emu::MAX_FIBERS || request->block_count % cluster)
    emu::note_fault("invalid", "a cluster of " + std::to_string(cluster) + " blocks of " + std::to_string(count) + " threads cannot be launched");
  else if (cluster > 1 && request->static_bytes)
    emu::note_fault("invalid", "a kernel of clusters may not have __shared__ variables: use HW_SHARED");
  else if (!count || count > emu::MAX_THREADS || request->dynamic_shared > emu::SHARED_MAP || request->static_bytes > emu::SHARED_MAP)
    emu::note_fault("invalid", "a block of " + std::to_string(count) + " threads with " + std::to_string(request->dynamic_shared) +
                                   " bytes of shared memory cannot be launched");
  else if (!prepare((u32)cluster, (u32)count))
    emu::note_fault("out_of_memory", "the host has no address space left for shared memory and stacks");
  s.cluster_size = s.fault_kind.empty() ? (u32)cluster : 1;
  s.thread_count = (u32)count;
  s.block_dim = {request->block[0], request->block[1], request->block[2]};
  s.grid_dim = {request->grid[0], request->grid[1], request->grid[2]};
  s.shared_bytes = request->dynamic_shared;
  s.resident_blocks = request->resident_blocks ? request->resident_blocks : 1;
  s.static_shared = request->static_shared;
  s.static_bytes = (u32)request->static_bytes;
  s.spans = request->spans, s.span_count = request->span_count;
  s.policy = (emu::Policy)request->policy;
  s.copy_mode = (emu::CopyMode)request->copy_mode;
  s.preempt = request->preempt;
  s.race_checks = request->race_checks;
  s.budget = request->budget;
  s.entry = request->entry, s.arguments = request->arguments;
  s.counters = {};
  emu::block = &s;
  emu::profile_reset();
  if (s.race_checks) emu::race_begin_launch();
  emu::install_signal_handlers();
  for (u64 i = 0; i < request->block_count && s.fault_kind.empty(); i += cluster) {
    begin_cluster(*request, i);
    emu::schedule_cluster();
    for (u32 rank = 0; rank < cluster; rank++) end_block(s.blocks[rank]);
  }
  emu::restore_signal_handlers();
  snprintf(result->kind, sizeof result->kind, "%s", s.fault_kind.c_str());
  snprintf(result->message, sizeof result->message, "%s", s.fault_message.c_str());
  result->switches = s.counters.switches, result->collectives = s.counters.collectives;
  result->barriers = s.counters.barriers, result->copies = s.counters.copies, result->blocks = s.counters.blocks;
  result->operations = (u64)(request->budget - s.budget);
}

// Counters of the profiled block of the last launch: up to `capacity` sites; returns how many there are.
EMU_API u64 emu_sites(emu::SiteCount* out, u64 capacity) {
  const auto& sites = emu::profile_sites();
  std::copy_n(sites.begin(), std::min<u64>(capacity, sites.size()), out);
  return sites.size();
}
