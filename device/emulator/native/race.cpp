// Races on shared memory, by happens-before, whatever the schedule happened to expose.
//
// A clock ticks at every completed block or warp barrier, and each granule of shared memory remembers its last write and
// up to two reads as stamps (thread, line, tick). Two accesses of different threads are ordered if a block barrier, or a
// warp barrier that both took part in, completed after the first. Two reads suffice: they are kept from different warps
// where possible, so that no later write can be ordered after both and yet race with a third.
// An asynchronous copy counts as a write that is still going on from its issue until its thread has waited for it.
//
// Named barriers, mbarriers and clusters order less than a whole block, through chains. From a kernel's first use of one
// on, every thread carries a clock: for each slot the tick before which that slot's accesses are known to be over. Slots
// are the threads of all blocks of the cluster, and behind them the asynchronous actors: a warpgroup, whose wgmma read
// until their wait, and an mbarrier, whose loads write until it completes.
//
// Granules are 16 bytes wide until a narrower access comes; then every granule is split, so that neighbours stay apart.
//
// For global memory one pattern is checked: a counter that publishes stores of the whole block (split-K) must be
// incremented after a barrier and a fence that follow those stores, and whoever then reads what other blocks published
// must have a fence between: its own, or the incrementing thread's before a barrier.
#include <algorithm>
#include <string>

#include "core.h"

namespace emu {

namespace {

// tick (33 bits) | line (16) | slot (14) | in flight (1); 0 means none.
using Stamp = u64;
constexpr int TICK_SHIFT = 31;

u32 block_slots() { return state.thread_count + MAX_WARPGROUPS + MAX_MBARRIERS; }
u32 base_slot(const BlockState& b) { return b.rank * block_slots(); }
u32 my_slot() { return base_slot(home()) + current->index; }

Stamp stamp_of(u32 slot, u64 tick, int line, bool in_flight = false) {
  return tick << TICK_SHIFT | (u64)(line & 0xffff) << 15 | (u64)slot << 1 | (in_flight ? 1 : 0);
}
Stamp stamp(u64 tick, int line, bool in_flight = false) { return stamp_of(my_slot(), tick, line, in_flight); }
u64 tick_of(Stamp s) { return s >> TICK_SHIFT; }
int line_of(Stamp s) { return (int)(s >> 15 & 0xffff); }
u32 slot_of(Stamp s) { return (u32)(s >> 1 & 0x3fff); }
u32 local_of(Stamp s) { return slot_of(s) % block_slots(); }
u32 rank_of(Stamp s) { return slot_of(s) / block_slots(); }
bool same_warp(Stamp a, Stamp b) { return rank_of(a) == rank_of(b) && local_of(a) / WARP == local_of(b) / WARP; }
// For messages: of which block, where it is not the running one.
std::string whose(u32 rank) { return rank == home().rank ? "" : " of block " + std::to_string(rank) + " of the cluster"; }

struct Granule { Stamp write, reads[2]; };
constexpr int WIDEST = 4;

std::vector<Granule> granules[MAX_CLUSTER];  // of each block: dynamic, then static shared memory
int shift = WIDEST;                          // log2 of a granule's bytes
u64 now = 1;                                 // never reset: what an earlier block left is ordered before everything
u64 begin_tick = 0;                          // when the cluster began
u64 block_tick[MAX_CLUSTER];                 // when each block's last block barrier completed, or it began
std::vector<Clock> clocks;                   // of each thread, by slot; empty until a barrier needs them

// A copy stays in flight across barriers, until it is waited for; one that an earlier block never waited for is over.
bool in_flight(Stamp s) { return (s & 1) && tick_of(s) >= begin_tick; }

bool ordered(Stamp before) {
  const u64 tick = tick_of(before);
  const u32 other = slot_of(before);
  if (tick < begin_tick) return true;
  const u32 local = other - base_slot(home());
  if (local < state.thread_count && tick < block_tick[home().rank]) return true;
  if (other == my_slot()) return true;
  if (!clocks.empty()) return tick < clocks[my_slot()][other];
  const Thread& self = *me();
  return local / WARP == self.warp && tick < self.warp_sync_tick && (self.warp_sync_mask >> (local % WARP) & 1);
}

void join(Clock& into, const Clock& other) {
  for (size_t i = 0; i < other.size(); i++) into[i] = std::max(into[i], other[i]);
}

// Gives every thread its clock, which says what block and warp barriers have said so far.
void need_clocks() {
  if (!clocks.empty()) return;
  const u32 slots = block_slots() * state.cluster_size;
  clocks.assign(slots, {});
  for (u32 rank = 0; rank < state.cluster_size; rank++) {
    const BlockState& b = state.blocks[rank];
    for (u32 i = 0; i < state.thread_count; i++) {
      Clock& clock = clocks[base_slot(b) + i];
      clock.assign(slots, 0);
      std::fill_n(clock.begin() + base_slot(b), state.thread_count, block_tick[rank]);
      const Thread& t = b.threads[i];
      for (u32 lane = 0; lane < WARP; lane++)
        if (t.warp_sync_mask >> lane & 1 && t.warp_sync_tick > block_tick[rank]) clock[base_slot(b) + t.warp * WARP + lane] = t.warp_sync_tick;
    }
  }
}

void split_granules(int to) {
  const int copies = 1 << (shift - to);
  for (u32 rank = 0; rank < state.cluster_size; rank++) {
    std::vector<Granule> finer;
    finer.reserve(granules[rank].size() * (size_t)copies);
    for (const Granule& g : granules[rank]) finer.insert(finer.end(), (size_t)copies, g);
    granules[rank].swap(finer);
  }
  shift = to;
}

// "thread 5 wrote" or what an asynchronous actor did.
std::string deed(Stamp s, const char* verb) {
  const u32 local = local_of(s);
  if (local < state.thread_count) return "thread " + std::to_string(local) + whose(rank_of(s)) + " " + verb;
  if (local < state.thread_count + MAX_WARPGROUPS)
    return "wgmma of warpgroup " + std::to_string(local - state.thread_count) + " (may still) " + verb;
  return std::string("a TMA load ") + verb;
}

[[noreturn]] void report(Stamp earlier, const char* earlier_verb, const char* verb, i64 granule, int line, u32 rank) {
  const std::string place = shared_name(granule << shift) + whose(rank);
  if (in_flight(earlier) && local_of(earlier) < state.thread_count)
    fail("race", "line %d %s %s while the cp.async of thread %u in line %d may still be writing it: wait for its group, then a barrier",
         line, verb, place.c_str(), local_of(earlier), line_of(earlier));
  if (in_flight(earlier))
    fail("race", "line %d %s %s while the TMA load of line %d may still be writing it: wait for its mbarrier", line, verb,
         place.c_str(), line_of(earlier));
  fail("race", "line %d %s %s, which %s in line %d, with no barrier between", line, verb, place.c_str(),
       deed(earlier, earlier_verb).c_str(), line_of(earlier));
}

void note_read(Granule& g, Stamp mine) {
  for (Stamp& read : g.reads)
    if (slot_of(read) == slot_of(mine) || ordered(read)) {
      read = mine;
      return;
    }
  // Both slots hold unordered reads of other threads: keep two warps among the three.
  if (same_warp(g.reads[0], g.reads[1]) && !same_warp(g.reads[0], mine)) g.reads[1] = mine;
}

void note_write(Granule& g, Stamp mine, i64 index, const char* verb, int line, u32 rank) {
  if (in_flight(g.write)) report(g.write, "", verb, index, line, rank);
  if (!ordered(g.write)) report(g.write, "wrote", verb, index, line, rank);
  for (const Stamp read : g.reads)
    if (!ordered(read)) report(read, "read", verb, index, line, rank);
  g = {mine, {0, 0}};
}

void prepare(i64 offset, u32 bytes) {
  const int needed = __builtin_ctzll((u64)offset | bytes | 1 << WIDEST);
  if (needed < shift) split_granules(needed);
}

}  // namespace

void race_begin_launch() {
  shift = WIDEST;
  for (u32 rank = 0; rank < state.cluster_size; rank++) granules[rank].assign((size_t)(2 * SHARED_MAP) >> shift, {});
}

void race_begin_cluster() {
  begin_tick = ++now;
  std::fill_n(block_tick, MAX_CLUSTER, begin_tick);
  clocks.clear();
}

namespace {

void read_granules(u32 rank, i64 offset, u32 bytes, Stamp mine, int line) {
  for (i64 i = offset >> shift; i < (offset + bytes) >> shift; i++) {
    Granule& g = granules[rank][(size_t)i];
    if (in_flight(g.write)) report(g.write, "", "reads", i, line, rank);
    if (!ordered(g.write)) report(g.write, "wrote", "reads", i, line, rank);
    note_read(g, mine);
  }
}

}  // namespace

void race_access(i64 offset, u32 bytes, bool write, int line) {
  prepare(offset, bytes);
  const Stamp mine = stamp(now, line);
  const u32 rank = home().rank;
  if (!write) return read_granules(rank, offset, bytes, mine, line);
  for (i64 i = offset >> shift; i < (offset + bytes) >> shift; i++) note_write(granules[rank][(size_t)i], mine, i, "writes", line, rank);
}

void race_copy_issued(i64 offset, u32 bytes, int line) {
  prepare(offset, bytes);
  const Stamp mine = stamp(now, line, true);
  for (i64 i = offset >> shift; i < (offset + bytes) >> shift; i++)
    note_write(granules[home().rank][(size_t)i], mine, i, "starts a cp.async into", line, home().rank);
}

void race_copy_done(i64 offset, u32 bytes, int line) {
  const Stamp mine = stamp(now, line);
  for (i64 i = offset >> shift; i < (offset + bytes) >> shift; i++) granules[home().rank][(size_t)i].write = mine;
}

void race_block_synced() {
  block_tick[home().rank] = ++now;
  if (clocks.empty()) return;
  const u32 base = base_slot(home());
  Clock all(clocks[base].size(), 0);
  for (u32 i = 0; i < state.thread_count; i++) join(all, clocks[base + i]);
  std::fill_n(all.begin() + base, state.thread_count, now);
  for (u32 i = 0; i < state.thread_count; i++) clocks[base + i] = all;
}

void race_warp_synced(u32 warp, u32 mask) {
  ++now;
  const u32 base = base_slot(home()) + warp * WARP;
  Clock all;
  for (u32 lane = 0; lane < WARP; lane++)
    if (mask >> lane & 1) {
      Thread& t = state.threads[warp * WARP + lane];
      t.warp_sync_tick = now;
      t.warp_sync_mask = mask;
      if (clocks.empty()) continue;
      if (all.empty()) all = clocks[base + lane];
      join(all, clocks[base + lane]);
      all[base + lane] = now;
    }
  for (u32 lane = 0; lane < WARP && !all.empty(); lane++)
    if (mask >> lane & 1) clocks[base + lane] = all;
}

// ---- barriers of fewer threads, and asynchronous actors
void race_release(Clock& clock) {
  if (!state.race_checks) return;
  need_clocks();
  Clock& mine = clocks[my_slot()];
  mine[my_slot()] = ++now;
  clock.resize(mine.size());
  join(clock, mine);
}

void race_acquire(const Clock& clock) {
  if (!state.race_checks) return;
  need_clocks();
  join(clocks[my_slot()], clock);
}

u32 wgmma_slot(u32 warpgroup) { return base_slot(home()) + state.thread_count + warpgroup; }
u32 mbarrier_slot(u32 index) { return state.thread_count + MAX_WARPGROUPS + index; }

void race_async_read(i64 offset, u32 bytes, u32 slot, int line) {
  prepare(offset, bytes);
  read_granules(home().rank, offset, bytes, stamp_of(slot, now, line), line);
}

void race_peer_read(BlockState& from, i64 offset, u32 bytes, int line) {
  need_clocks();
  prepare(offset, bytes);
  read_granules(from.rank, offset, bytes, stamp(now, line), line);
}

void race_async_reads_done(u32 slot, u32 first, u32 count) {
  need_clocks();
  ++now;
  for (u32 i = first; i < first + count; i++) clocks[base_slot(home()) + i][slot] = now;
}

void race_load_issued(BlockState& to, i64 offset, u32 bytes, u32 slot, int line) {
  need_clocks();
  prepare(offset, bytes);
  const Stamp mine = stamp_of(base_slot(to) + slot, now, line, true);
  for (i64 i = offset >> shift; i < (offset + bytes) >> shift; i++)
    note_write(granules[to.rank][(size_t)i], mine, i, "starts a TMA load into", line, to.rank);
}

void race_load_done(BlockState& to, i64 offset, u32 bytes, u32 slot, int line, Clock& clock) {
  const Stamp mine = stamp_of(base_slot(to) + slot, now, line);
  for (i64 i = offset >> shift; i < (offset + bytes) >> shift; i++) granules[to.rank][(size_t)i].write = mine;
  clock.resize((size_t)block_slots() * state.cluster_size);
  clock[base_slot(to) + slot] = ++now;
}

u64 race_stamp(int line) { return stamp(now, line); }

bool race_knows(u64 stamp) { return ordered(stamp); }

// ---- publishing through a counter
// With clocks, warpgroups may publish each for itself: then what another one stores is its own matter.
namespace {

struct Published { u64 tick; u32 thread; int line; };
Published by_warpgroup[MAX_CLUSTER][MAX_WARPGROUPS];

Published& published() { return by_warpgroup[clocks.empty() ? 0 : home().rank][clocks.empty() ? 0 : current->index / WARPGROUP]; }

// Whether what thread i of this block did at `tick` is known to the running thread.
bool known(u32 i, u64 tick) {
  return i == current->index || tick < (clocks.empty() ? block_tick[home().rank] : clocks[my_slot()][base_slot(home()) + i]);
}

bool together(u32 i) { return clocks.empty() || i / WARPGROUP == current->index / WARPGROUP; }

}  // namespace

void race_global_store(int line) {
  Thread& self = *me();
  const Published& last = published();
  if (last.tick >= begin_tick && !known(last.thread, last.tick))
    fail("race", "line %d stores what atomic_inc of thread %u in line %d has published already, with no barrier between", line,
         last.thread, last.line);
  self.store_tick = now;
  self.store_line = line;
  self.store_fenced = false;
}

void fence_device() {
  me()->store_fenced = true;
  me()->fence_tick = ++now;
}

void race_publish(int line) {
  const Thread& self = *me();
  const u64 since = clocks.empty() ? block_tick[home().rank] : 0;  // a fence before the last block barrier is no use
  for (u32 i = 0; i < state.thread_count; i++) {
    const Thread& other = state.threads[i];
    if (!other.store_tick) continue;
    if (!known(i, other.store_tick)) {
      if (!together(i)) continue;
      fail("race", "atomic_inc in line %d publishes what thread %u stores in line %d, with no barrier between", line, i, other.store_line);
    }
    const bool fenced_here = self.fence_tick > since && self.fence_tick > other.store_tick;
    if (!other.store_fenced && !fenced_here)
      fail("race", "atomic_inc in line %d publishes what thread %u stores in line %d, with no fence_device between", line, i, other.store_line);
  }
  published() = {++now, self.index, line};
}

void race_global_read(const void* p, int line) {
  const Published& last = published();
  if (last.tick < begin_tick) return;  // no counter so far, hence nothing of another block's
  const Span* end = state.spans + state.span_count;
  const Span* span = std::find_if(state.spans, end, [p](const Span& s) { return inside(p, 1, s.begin, s.bytes); });
  if (span == end || !span->writable) return;
  const u64 theirs = state.threads[last.thread].fence_tick;
  if (me()->fence_tick > last.tick || (theirs > last.tick && known(last.thread, theirs))) return;
  fail("race", "line %d reads from %s what other blocks published by the counter of line %d, with no fence_device between", line,
       span->name, last.line);
}

}  // namespace emu
