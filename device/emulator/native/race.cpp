// Races on shared memory, by happens-before, whatever the schedule happened to expose.
//
// A clock ticks at every completed block or warp barrier, and each granule of shared memory remembers its last write and
// up to two reads as stamps (thread, line, tick). Two accesses of different threads are ordered if a block barrier, or a
// warp barrier that both took part in, completed after the first. Two reads suffice: they are kept from different warps
// where possible, so that no later write can be ordered after both and yet race with a third.
// An asynchronous copy counts as a write that is still going on from its issue until its thread has waited for it.
//
// Granules are 16 bytes wide until a narrower access comes; then every granule is split, so that neighbours stay apart.
//
// For global memory one pattern is checked: a counter that publishes stores of the whole block (split-K) must be
// incremented after a barrier and a fence that follow those stores, and whoever then reads what other blocks published
// must have a fence between: its own, or the incrementing thread's before a barrier.
#include <algorithm>

#include "core.h"

namespace emu {

namespace {

// tick (37 bits) | line (16) | thread (10) | in flight (1); 0 means none.
using Stamp = u64;
Stamp stamp(u64 tick, int line, bool in_flight = false) {
  return tick << 27 | (u64)(line & 0xffff) << 11 | (u64)current->index << 1 | (in_flight ? 1 : 0);
}
u64 tick_of(Stamp s) { return s >> 27; }
int line_of(Stamp s) { return (int)(s >> 11 & 0xffff); }
u32 thread_of(Stamp s) { return (u32)(s >> 1 & 1023); }

struct Granule { Stamp write, reads[2]; };
constexpr int WIDEST = 4;

std::vector<Granule> granules;  // covers dynamic, then static shared memory
int shift = WIDEST;             // log2 of a granule's bytes
u64 now = 1;                    // never reset: what an earlier block left is ordered before everything
u64 begin_tick = 0;             // when the block began
u64 block_tick = 0;             // when the last block barrier completed, or the block began

// A copy stays in flight across barriers, until it is waited for; one that an earlier block never waited for is over.
bool in_flight(Stamp s) { return (s & 1) && tick_of(s) >= begin_tick; }

bool ordered(Stamp before) {
  if (before < block_tick << 27) return true;
  const u32 other = thread_of(before);
  if (other == current->index) return true;
  const Thread& self = *me();
  return other / WARP == self.warp && tick_of(before) < self.warp_sync_tick && (self.warp_sync_mask >> (other % WARP) & 1);
}

void split_granules(int to) {
  const int copies = 1 << (shift - to);
  std::vector<Granule> finer;
  finer.reserve(granules.size() * (size_t)copies);
  for (const Granule& g : granules) finer.insert(finer.end(), (size_t)copies, g);
  granules.swap(finer);
  shift = to;
}

[[noreturn]] void report(Stamp earlier, const char* earlier_verb, const char* verb, i64 granule, int line) {
  const std::string place = shared_name(granule << shift);
  if (in_flight(earlier))
    fail("race", "line %d %s %s while the cp.async of thread %u in line %d may still be writing it: wait for its group, then a barrier",
         line, verb, place.c_str(), thread_of(earlier), line_of(earlier));
  fail("race", "line %d %s %s, which thread %u %s in line %d, with no barrier between", line, verb, place.c_str(),
       thread_of(earlier), earlier_verb, line_of(earlier));
}

void note_read(Granule& g, Stamp mine) {
  const u32 warp = current->index / WARP;
  for (Stamp& read : g.reads)
    if (ordered(read)) {
      read = mine;
      return;
    }
  // Both slots hold unordered reads of other threads: keep two warps among the three.
  if (thread_of(g.reads[0]) / WARP == thread_of(g.reads[1]) / WARP && thread_of(g.reads[0]) / WARP != warp) g.reads[1] = mine;
}

void note_write(Granule& g, Stamp mine, i64 index, const char* verb, int line) {
  if (in_flight(g.write)) report(g.write, "", verb, index, line);
  if (!ordered(g.write)) report(g.write, "wrote", verb, index, line);
  for (const Stamp read : g.reads)
    if (!ordered(read)) report(read, "read", verb, index, line);
  g = {mine, {0, 0}};
}

void prepare(i64 offset, u32 bytes) {
  const int needed = __builtin_ctzll((u64)offset | bytes | 1 << WIDEST);
  if (needed < shift) split_granules(needed);
}

}  // namespace

void race_begin_launch() {
  shift = WIDEST;
  granules.assign((size_t)(2 * SHARED_MAP) >> shift, {});
}

void race_begin_block() {
  begin_tick = block_tick = ++now;
}

void race_access(i64 offset, u32 bytes, bool write, int line) {
  prepare(offset, bytes);
  const Stamp mine = stamp(now, line);
  for (i64 i = offset >> shift; i < (offset + bytes) >> shift; i++) {
    Granule& g = granules[(size_t)i];
    if (write) {
      note_write(g, mine, i, "writes", line);
      continue;
    }
    if (in_flight(g.write)) report(g.write, "", "reads", i, line);
    if (!ordered(g.write)) report(g.write, "wrote", "reads", i, line);
    note_read(g, mine);
  }
}

void race_copy_issued(i64 offset, u32 bytes, int line) {
  prepare(offset, bytes);
  const Stamp mine = stamp(now, line, true);
  for (i64 i = offset >> shift; i < (offset + bytes) >> shift; i++) note_write(granules[(size_t)i], mine, i, "starts a cp.async into", line);
}

void race_copy_done(i64 offset, u32 bytes, int line) {
  const Stamp mine = stamp(now, line);
  for (i64 i = offset >> shift; i < (offset + bytes) >> shift; i++) granules[(size_t)i].write = mine;
}

void race_block_synced() { block_tick = ++now; }

void race_warp_synced(u32 warp, u32 mask) {
  ++now;
  for (u32 lane = 0; lane < WARP; lane++)
    if (mask >> lane & 1) {
      Thread& t = state.threads[warp * WARP + lane];
      t.warp_sync_tick = now;
      t.warp_sync_mask = mask;
    }
}

// ---- publishing through a counter
namespace {

struct { u64 tick; u32 thread; int line; } published;

}  // namespace

void race_global_store(int line) {
  Thread& self = *me();
  if (published.tick >= block_tick && published.thread != self.index)
    fail("race", "line %d stores what atomic_inc of thread %u in line %d has published already, with no barrier between", line,
         published.thread, published.line);
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
  for (u32 i = 0; i < state.thread_count; i++) {
    const Thread& other = state.threads[i];
    if (!other.store_tick) continue;
    if (i != self.index && other.store_tick >= block_tick)
      fail("race", "atomic_inc in line %d publishes what thread %u stores in line %d, with no barrier between", line, i, other.store_line);
    const bool fenced_here = self.fence_tick > block_tick && self.fence_tick > other.store_tick;
    if (!other.store_fenced && !fenced_here)
      fail("race", "atomic_inc in line %d publishes what thread %u stores in line %d, with no fence_device between", line, i, other.store_line);
  }
  published = {++now, self.index, line};
}

void race_global_read(const void* p, int line) {
  if (published.tick < begin_tick) return;  // no counter so far, hence nothing of another block's
  const Span* end = state.spans + state.span_count;
  const Span* span = std::find_if(state.spans, end, [p](const Span& s) { return inside(p, 1, s.begin, s.bytes); });
  if (span == end || !span->writable) return;
  const u64 theirs = state.threads[published.thread].fence_tick;
  if (me()->fence_tick > published.tick || (theirs > published.tick && theirs < block_tick)) return;
  fail("race", "line %d reads from %s what other blocks published by the counter of line %d, with no fence_device between", line,
       span->name, published.line);
}

}  // namespace emu
