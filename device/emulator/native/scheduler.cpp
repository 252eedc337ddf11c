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

Thread* lowest() {
  for (u32 i = 0; i < MAX_THREADS / 64; i++)
    if (state.ready.words[i]) return &state.threads[i * 64 + std::countr_zero(state.ready.words[i])];
  return nullptr;
}

Thread* highest() {
  for (u32 i = MAX_THREADS / 64; i-- > 0;)
    if (state.ready.words[i]) return &state.threads[i * 64 + 63 - std::countl_zero(state.ready.words[i])];
  return nullptr;
}

Thread* by_priority() {
  const u32 warps = (state.thread_count + WARP - 1) / WARP;
  if (state.next_random() % 256 == 0) std::swap(state.priority[0], state.priority[state.next_random() % warps]);
  for (u32 i = 0; i < warps; i++) {
    const u32 warp = state.priority[i], lanes = state.ready.lanes(warp);
    if (!lanes) continue;
    const u32 lane = warp % 2 ? 31 - std::countl_zero(lanes) : std::countr_zero(lanes);
    return &state.threads[warp * WARP + lane];
  }
  return nullptr;
}

[[noreturn]] void deadlock() {
  {
    std::map<std::tuple<std::string, u64, int>, std::pair<u32, u32>> places;  // (what, argument, line) -> count, first
    for (u32 i = 0; i < state.thread_count; i++) {
      const Thread& t = state.threads[i];
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
    if (state.live < state.thread_count) {
      text += "; " + std::to_string(state.thread_count - state.live) + " threads have ended";
    }
    char where[64];
    snprintf(where, sizeof where, "block (%u,%u,%u): ", state.block_idx.x, state.block_idx.y, state.block_idx.z);
    note_fault("deadlock", where + ("no thread can go on: " + text));
  }
  leave_to_launcher();
}

Thread* pick() {
  Thread* next = state.policy == LOWEST_FIRST ? lowest() : state.policy == HIGHEST_FIRST ? highest() : by_priority();
  if (!next && state.live) deadlock();
  return next;
}

void yield() {
  Thread* next = pick();
  if (next != me()) switch_to(next);
}

void release_barrier() {
  Barrier& barrier = state.block_barrier;
  barrier.arrived = 0;
  barrier.waiting.move_to(state.ready);
  state.counters.barriers++;
  race_block_synced();
}

}  // namespace

void park(const char* what, u64 argument, int line) {
  Thread* self = me();
  self->waiting_for = what;
  self->waiting_argument = argument;
  self->waiting_line = line;
  state.ready.remove(self->index);
  yield();
}

void maybe_preempt() {
  if (state.preempt && state.next_random() % 8 == 0) yield();
}

// __syncthreads: every thread of the block that has not ended takes part, and all at one line: CUDA leaves undefined
// what a barrier under a condition does that does not hold for the whole block alike.
void block_barrier(int line) {
  spend(line);
  maybe_preempt();
  Barrier& barrier = state.block_barrier;
  if (!barrier.arrived) barrier.line = line;
  if (barrier.line != line)
    fail("divergence", "the block barrier in line %d is reached while other threads wait at the one in line %d", line, barrier.line);
  if (++barrier.arrived == state.live) {
    release_barrier();
    return;
  }
  barrier.waiting.add(current->index);
  park("the block barrier", 0, line);
}

void thread_body() {
  state.entry(state.arguments);
  Thread* self = me();
  self->done = true;
  state.ready.remove(self->index);
  state.live--;
  if (state.block_barrier.arrived && state.block_barrier.arrived == state.live) release_barrier();
  Thread* next = pick();
  if (!next) leave_to_launcher();
  switch_to(next);
  __builtin_trap();  // an ended thread is never ready
}

void schedule_block() {
  const u32 warps = (state.thread_count + WARP - 1) / WARP;
  state.live = state.thread_count;
  state.ready = {};
  state.block_barrier = {};
  for (u32 w = 0; w < warps; w++) {
    state.priority[w] = (u8)w;
    for (auto& pending : state.warps[w].pending) pending.used = false;
  }
  for (u32 w = warps - 1; w > 0; w--) std::swap(state.priority[w], state.priority[state.next_random() % (w + 1)]);
  for (u32 i = 0; i < state.thread_count; i++) {
    Thread& t = state.threads[i];
    const dim3& size = state.block_dim;
    t.index = i, t.lane = i % WARP, t.warp = i / WARP;
    t.thread_idx = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
    t.done = false;
    t.waiting_for = "its start";
    t.copies.clear();
    t.groups.clear();
    t.warp_sync_tick = t.store_tick = t.fence_tick = 0;
    prepare_fiber(t, thread_body);
    state.ready.add(i);
  }
  run_from_launcher(pick());
}

}  // namespace emu
