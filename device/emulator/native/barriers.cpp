// Barriers of fewer or more threads than a block: named ones, meetings of a warpgroup, clusters, whose blocks read each
// other's shared memory; and the registers that warpgroups pass to one another.
//
// PTX ISA, "barrier{.cta}", "barrier.cluster", "setmaxnreg". bar.sync counts whole warps; a thread that has ended counts
// as one that has arrived at every cluster barrier.
#include <algorithm>

#include "core.h"

namespace emu {

namespace {

struct ClusterBarrier {
  u32 arrived = 0;
  u64 phase = 0;
  ThreadSet waiting[MAX_CLUSTER];
  Clock gathering, completed;
} cluster_barrier;

// A kernel that uses setmaxnreg starts with an even share, by its launch bounds, of the multiprocessor's 65536 registers,
// rounded down to a multiple of 8 (so does ptxas); what moves between warpgroups stays within what the block began with.
u32 initial_registers() { return std::min(256u, 65536 / (state.thread_count * state.resident_blocks) / 8 * 8); }

u32 whole_warps(u32 threads) { return (threads + WARP - 1) / WARP * WARP; }

}  // namespace

void begin_barriers() {
  cluster_barrier = {};
  begin_tensor_copies();
}

void begin_hopper(BlockState& b) {
  for (NamedBarrier& barrier : b.named) barrier = {};
  for (WarpgroupState& group : b.groups) {
    group = {};
    group.registers = initial_registers();
  }
  b.register_waiters = {};
  b.mbarriers.clear();
  b.storing.clear();
  if (state.race_checks) proxy_begin(b.rank);
}

// ---------------------------------------------------------------- named barriers
void named_barrier(int id, int threads, bool wait, int line) {
  spend(line);
  maybe_preempt();
  if (id < 1 || id > 15) fail("invalid", "named_barrier in line %d uses barrier %d: 1 to 15 are free, 0 is sync_block's", line, id);
  if (threads <= 0 || threads % WARP || (u32)threads > whole_warps(state.thread_count))
    fail("invalid", "named_barrier in line %d expects %d threads: it must be whole warps of the block's %u", line, threads, state.thread_count);
  NamedBarrier& barrier = home().named[id];
  if (!barrier.arrived) barrier.expected = (u32)threads, barrier.line = line;
  if (barrier.expected != (u32)threads)
    fail("divergence", "line %d brings %d threads to named barrier %d, where line %d expects %u", line, threads, id, barrier.line, barrier.expected);
  const u32 bit = 1u << current->lane;
  if (barrier.came.lanes(current->warp) & bit)
    fail("divergence", "line %d arrives twice at named barrier %d before it has completed", line, id);
  barrier.came.add(current->index);
  barrier.arrived++;
  race_release(barrier.gathering);
  if (barrier.arrived < barrier.expected) {
    if (!wait) return;
    barrier.waiting.add(current->index);
    static const char* const names[16] = {"", "named barrier 1", "named barrier 2", "named barrier 3", "named barrier 4",
                                          "named barrier 5", "named barrier 6", "named barrier 7", "named barrier 8",
                                          "named barrier 9", "named barrier 10", "named barrier 11", "named barrier 12",
                                          "named barrier 13", "named barrier 14", "named barrier 15"};
    park(names[id], 0, line);
  } else {
    for (u32 warp = 0; warp * WARP < state.thread_count; warp++) {
      const u32 lanes = barrier.came.lanes(warp);
      if (lanes && lanes != ~0u)
        fail("divergence", "line %d: only lanes %08x of warp %u came to named barrier %d, which takes whole warps", line, lanes, warp, id);
    }
    barrier.arrived = 0;
    barrier.came = {};
    barrier.completed = barrier.gathering;
    barrier.waiting.move_to(home().ready);
    state.counters.barriers++;
  }
  if (wait) race_acquire(barrier.completed);
}

// ---------------------------------------------------------------- meetings of a warpgroup
bool meet_warpgroup(const char* name, int argument, int line) {
  const u32 index = current->index / WARPGROUP;
  if ((index + 1) * WARPGROUP > state.thread_count)
    fail("divergence", "line %d: %s needs a whole warpgroup, and the last threads of the block are none", line, name);
  WarpgroupState& group = home().groups[index];
  if (!group.arrived) group.line = line, group.argument = argument, group.name = name;
  if (group.line != line || group.argument != argument || group.name != name)
    fail("divergence", "thread %u is at %s in line %d while others of its warpgroup are at %s in line %d", current->index, name, line,
         group.name, group.line);
  if (++group.arrived == WARPGROUP) return true;
  park(name, 0, line);
  return false;
}

void release_warpgroup() {
  const u32 index = current->index / WARPGROUP;
  home().groups[index].arrived = 0;
  for (u32 warp = index * 4; warp < index * 4 + 4; warp++) home().ready.add_lanes(warp, ~0u);
  state.counters.collectives++;
}

// ---------------------------------------------------------------- setmaxnreg
void registers_change(int count, bool more, int line) {
  spend(line);
  const char* name = more ? "registers_more" : "registers_fewer";
  const u32 index = current->index / WARPGROUP, wanted = (u32)count;
  WarpgroupState& group = home().groups[index];
  if (meet_warpgroup(name, count, line)) {
    if (more ? wanted < group.registers : wanted > group.registers)
      fail("invalid", "%s in line %d asks for %d registers, but warpgroup %u has %u", name, line, count, index, group.registers);
    if (!more) group.registers = wanted, home().register_waiters.move_to(home().ready);
    release_warpgroup();
  }
  for (;;) {
    if (group.registers == wanted) return;
    u32 others = 0;
    for (u32 i = 0; i < (state.thread_count + WARPGROUP - 1) / WARPGROUP; i++) others += i == index ? 0 : home().groups[i].registers;
    const u32 groups = (state.thread_count + WARPGROUP - 1) / WARPGROUP;
    if (others + wanted <= groups * initial_registers()) {
      group.registers = wanted;
      return;
    }
    home().register_waiters.add(current->index);
    park("registers_more, for registers that no warpgroup gives up", 0, line);
  }
}

// ---------------------------------------------------------------- clusters
u32 cluster_rank() { return home().rank; }

void release_cluster_barrier_if_complete() {
  u32 live = 0;
  for (u32 i = 0; i < state.cluster_size; i++) live += state.blocks[i].live;
  ClusterBarrier& c = cluster_barrier;
  if (!live || !c.arrived || c.arrived < live) return;
  c.arrived = 0;
  c.phase++;
  c.completed = c.gathering;
  for (u32 i = 0; i < state.cluster_size; i++) c.waiting[i].move_to(state.blocks[i].ready);
  state.counters.barriers++;
}

void cluster_arrive(bool release, int line) {
  spend(line);
  maybe_preempt();
  Thread& self = *me();
  if (self.cluster_arrived) fail("divergence", "line %d arrives at the cluster barrier a second time, without waiting between", line);
  self.cluster_arrived = true;
  self.cluster_phase = cluster_barrier.phase;
  cluster_barrier.arrived++;
  if (release) race_release(cluster_barrier.gathering);
  release_cluster_barrier_if_complete();
}

void cluster_wait(int line) {
  spend(line);
  Thread& self = *me();
  if (!self.cluster_arrived) fail("divergence", "line %d waits at the cluster barrier without having arrived", line);
  self.cluster_arrived = false;
  if (cluster_barrier.phase == self.cluster_phase) {
    cluster_barrier.waiting[home().rank].add(self.index);
    park("the cluster barrier", 0, line);
  }
  race_acquire(cluster_barrier.completed);
}

// The place of `p` in the shared memory of another block, or of this one, which is read there.
const void* cluster_place(const void* p, u32 bytes, u32 alignment, u32 cta, int line) {
  constexpr const char* what = "lds_cluster";
  spend(line);
  maybe_preempt();
  if (cta >= state.cluster_size) fail("invalid", "%s in line %d names block %u of a cluster of %u", what, line, cta, state.cluster_size);
  const i64 offset = shared_offset(p, bytes);
  if (offset < 0 || (uintptr_t)p % alignment) bad_shared_access(p, bytes, alignment, SHARED_READ, line);
  BlockState& where = state.blocks[cta];
  if (!where.live) fail("protocol", "%s in line %d reads from block %u of the cluster, which has ended", what, line, cta);
  if (offset >= STATIC_OFFSET) return p;  // the launcher refuses clusters with such variables: there is one block
  if (state.profile) profile_access(p, bytes, SHARED_READ, line);  // the banks are the same there
  if (state.race_checks) race_peer_read(where, offset, bytes, line);
  return where.shared + offset;
}

}  // namespace emu
