// Who runs next, the block barrier, and the report of a deadlock.
//
// Greedy schedules find more than fair ones: a thread runs until it has to wait, and then the lowest (or highest) ready
// thread, or the ready thread of the warp that stands first in a random order, goes on.
#include <bit>
#include <map>
#include <tuple>
#include <utility>

#include "core.h"

namespace emu {

namespace {

Thread* lowest(const BlockState& b) {
  for (u32 i = 0; i < MAX_THREADS / 64; i++)
    if (b.ready.words[i]) return &b.threads[i * 64 + std::countr_zero(b.ready.words[i])];
  return nullptr;
}

Thread* highest(const BlockState& b) {
  for (u32 i = MAX_THREADS / 64; i-- > 0;)
    if (b.ready.words[i]) return &b.threads[i * 64 + 63 - std::countl_zero(b.ready.words[i])];
  return nullptr;
}

Thread* by_priority(BlockState& b) {
  const u32 warps = (state.thread_count + WARP - 1) / WARP;
  if (state.next_random() % 256 == 0) std::swap(b.priority[0], b.priority[state.next_random() % warps]);
  for (u32 i = 0; i < warps; i++) {
    const u32 warp = b.priority[i], lanes = b.ready.lanes(warp);
    if (!lanes) continue;
    const u32 lane = warp % 2 ? 31 - std::countl_zero(lanes) : std::countr_zero(lanes);
    return &b.threads[warp * WARP + lane];
  }
  return nullptr;
}

// The blocks of a cluster in the order of the policy; by chance, one of them is asked first.
Thread* ready_thread() {
  const u32 count = state.cluster_size, first = count > 1 && state.policy == RANDOM_PRIORITY ? (u32)(state.next_random() % count) : 0;
  for (u32 i = 0; i < count; i++) {
    BlockState& b = state.blocks[state.policy == HIGHEST_FIRST ? count - 1 - i : (first + i) % count];
    Thread* next = state.policy == LOWEST_FIRST ? lowest(b) : state.policy == HIGHEST_FIRST ? highest(b) : by_priority(b);
    if (next) return next;
  }
  return nullptr;
}

u32 live_threads() {
  u32 live = 0;
  for (u32 i = 0; i < state.cluster_size; i++) live += state.blocks[i].live;
  return live;
}

[[noreturn]] void deadlock() {
  {
    std::map<std::tuple<std::string, u64, int>, std::pair<u32, u32>> places;  // (what, argument, line) -> count, first
    for (u32 rank = 0; rank < state.cluster_size; rank++)
      for (u32 i = 0; i < state.thread_count; i++) {
        const Thread& t = state.blocks[rank].threads[i];
        if (t.done) continue;
        auto [place, fresh] = places.try_emplace({t.waiting_for, t.waiting_argument, t.waiting_line}, 0, i);
        place->second.first++;
      }
    std::string text;
    for (const auto& [place, who] : places) {
      char part[200];
      snprintf(part, sizeof part, "%s%u thread%s (first %u) at %s in line %d", text.empty() ? "" : "; ", who.first,
               who.first == 1 ? "" : "s", who.second, std::get<0>(place).c_str(), std::get<2>(place));
      text += part;
      if (std::get<1>(place)) {
        snprintf(part, sizeof part, " with mask %08llx", std::get<1>(place));
        text += part;
      }
    }
    const u32 ended = state.cluster_size * state.thread_count - live_threads();
    if (ended) text += "; " + std::to_string(ended) + " threads have ended";
    char where[64];
    snprintf(where, sizeof where, "block (%u,%u,%u): ", state.block_idx.x, state.block_idx.y, state.block_idx.z);
    note_fault("deadlock", where + ("no thread can go on: " + text));
  }
  leave_to_launcher();
}

// Loads arrive when nobody can go on without them: as late as may be.
Thread* pick() {
  maybe_land_load();
  for (;;) {
    if (Thread* next = ready_thread()) return next;
    if (land_one_load()) continue;
    if (live_threads()) deadlock();
    return nullptr;
  }
}

void yield() {
  Thread* next = pick();
  if (next != me()) switch_to(next);
}

void release_barrier() {
  Barrier& barrier = home().block_barrier;
  barrier.arrived = 0;
  barrier.waiting.move_to(home().ready);
  state.counters.barriers++;
  race_block_synced();
}

}  // namespace

void park(const char* what, u64 argument, int line) {
  Thread* self = me();
  self->waiting_for = what;
  self->waiting_argument = argument;
  self->waiting_line = line;
  home().ready.remove(self->index);
  yield();
}

void step_aside() {
  Thread* self = me();
  home().ready.remove(self->index);
  Thread* next = ready_thread();
  if (!next) {
    land_one_load();
    next = ready_thread();
  }
  self->home->ready.add(self->index);
  if (next) switch_to(next);
}

void enter_block(BlockState& next) {
  state.home = &next;
  state.block_idx = next.block_idx;
  state.shared = next.shared;
  state.threads = next.threads;
  state.profile = next.profiled;
  state.observed = state.race_checks || state.profile;
}

void maybe_preempt() {
  if (state.preempt && state.next_random() % 8 == 0) yield();
}

// __syncthreads: every thread of the block that has not ended takes part, and all at one line: CUDA leaves undefined
// what a barrier under a condition does that does not hold for the whole block alike.
void block_barrier(int line) {
  spend(line);
  maybe_preempt();
  Barrier& barrier = home().block_barrier;
  if (!barrier.arrived) barrier.line = line;
  if (barrier.line != line)
    fail("divergence", "the block barrier in line %d is reached while other threads wait at the one in line %d", line, barrier.line);
  if (++barrier.arrived == home().live) {
    release_barrier();
    return;
  }
  barrier.waiting.add(current->index);
  park("the block barrier", 0, line);
}

void thread_body() {
  state.entry(state.arguments);
  Thread* self = me();
  check_wgmma_exit();
  check_stores_exit();
  BlockState& b = home();
  self->done = true;
  b.ready.remove(self->index);
  b.live--;
  if (!b.live) check_block_exit();
  if (b.block_barrier.arrived && b.block_barrier.arrived == b.live) release_barrier();
  release_cluster_barrier_if_complete();
  Thread* next = pick();
  if (!next) leave_to_launcher();
  switch_to(next);
  __builtin_trap();  // an ended thread is never ready
}

namespace {

void begin_threads(BlockState& b) {
  const u32 warps = (state.thread_count + WARP - 1) / WARP;
  b.live = state.thread_count;
  b.ready = {};
  b.block_barrier = {};
  for (u32 w = 0; w < warps; w++) {
    b.priority[w] = (u8)w;
    for (auto& pending : b.warps[w].pending) pending.used = false;
  }
  for (u32 w = warps - 1; w > 0; w--) std::swap(b.priority[w], b.priority[state.next_random() % (w + 1)]);
  for (u32 i = 0; i < state.thread_count; i++) {
    Thread& t = b.threads[i];
    const dim3& size = state.block_dim;
    t.home = &b, t.fiber = b.rank * state.thread_count + i;
    t.index = i, t.lane = i % WARP, t.warp = i / WARP;
    t.thread_idx = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
    t.done = false;
    t.waiting_for = "its start";
    t.copies.clear();
    t.groups.clear();
    t.warp_sync_tick = t.store_tick = t.fence_tick = 0;
    t.wgmmas.clear(), t.wgmma_groups.clear(), t.accumulators.clear();
    t.stores.clear(), t.store_groups.clear();
    t.wgmma_fenced = t.cluster_arrived = false;
    t.proxy_fence_tick = 0;
    t.cluster_phase = 0;
    prepare_fiber(t, thread_body);
    b.ready.add(i);
  }
}

}  // namespace

void schedule_cluster() {
  for (u32 i = 0; i < state.cluster_size; i++) begin_threads(state.blocks[i]);
  run_from_launcher(pick());
}

}  // namespace emu
