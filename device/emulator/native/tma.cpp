// TMA: boxes of a two-dimensional tensor to and from shared memory (PTX ISA, "cp.async.bulk.tensor" and "Swizzling
// modes").
//
// A load is queued for each block that it goes to, and its destination holds poison until it lands: when nobody can go on
// without it (or at once, or by chance). A store reads shared memory when its thread waits for it. Elements outside the
// tensor are zero in a load. A store writes what lies in the tensor and, as an H200 does, the 16 bytes of a row that begin
// inside the tensor whole, even past its last column; it may not start before the tensor, where an H200 traps.
//
// The async proxy sees an ordinary write only after fence_proxy_async: of the thread that wrote, after its write, or of
// the thread that then starts the asynchronous read.
#include <algorithm>
#include <cstring>

#include "core.h"
#include "numbers.h"

namespace emu {

namespace {

struct Load {
  TensorView map;
  BlockState* to;
  u8* shared;
  int x, y, line;
  u32 mbarrier;
};
std::vector<Load> loads;  // in order of issue

u32 line_bytes(const TensorView& m) { return m.box[0] * m.element_bytes; }
u32 box_bytes(const TensorView& m) { return line_bytes(m) * m.box[1]; }

// Where byte `offset` of the block's shared memory lies under the swizzle: 16-byte chunks exchange places within lines.
u32 swizzled(u32 offset, u32 swizzle) {
  const u32 chunks = swizzle / 16;
  return chunks > 1 ? offset ^ (offset >> 3 & (chunks - 1) << 4) : offset;
}

const TensorView& view_of(const void* map, const char* what, int line) {
  const auto* view = (const TensorView*)map;
  if ((uintptr_t)map % 64) fail("misaligned", "%s in line %d: the tensor map is not 64-byte aligned", what, line);
  if (view->magic != TENSOR_MAGIC) fail("invalid", "%s in line %d: there is no tensor map", what, line);
  return *view;
}

void check_place(const TensorView& map, i64 offset, u32 limit, const void* shared, const char* what, int line) {
  const u32 wanted = map.swizzle ? 8 * map.swizzle : 128;
  if (offset < 0 || (u64)offset + box_bytes(map) > limit) bad_shared_access(shared, box_bytes(map), 1, SHARED_WRITE, line);
  if (offset % wanted)
    fail("misaligned", "%s in line %d: byte %lld of shared memory is not a multiple of the %u of a %u-byte swizzle", what, line, offset,
         wanted, map.swizzle);
}

// Calls move(global, first byte in the line, bytes, row) for the part of each line of the box that is moved: what lies in
// the tensor, of a store in whole 16 bytes.
template <class F> void for_each_line(const TensorView& m, int x, int y, Access access, int line, F move) {
  const i64 unit = access == GLOBAL_WRITE ? 16 / m.element_bytes : 1, end = ((i64)m.extents[0] + unit - 1) / unit * unit;
  const i64 first = std::max<i64>(x, 0), last = x < (i64)m.extents[0] ? std::min<i64>((i64)x + m.box[0], end) : first;
  for (u32 row = 0; row < m.box[1]; row++) {
    const i64 global_row = (i64)y + row;
    const bool empty = global_row < 0 || global_row >= (i64)m.extents[1] || first >= last;
    u8* global = empty ? nullptr : m.base + (u64)global_row * m.pitch + (u64)first * m.element_bytes;
    const u32 bytes = empty ? 0 : (u32)((last - first) * m.element_bytes);
    if (bytes) {
      bool known = false;
      for (u32 i = 0; i < state.span_count && !known; i++)
        known = inside(global, bytes, state.spans[i].begin, state.spans[i].bytes) && (access == GLOBAL_READ || state.spans[i].writable);
      if (!known) bad_global_access(global, bytes, 1, access, line);
    }
    move(global, (u32)(first - x) * m.element_bytes, bytes, row);
  }
}

void perform(const Load& load) {
  const TensorView& m = load.map;
  const u32 width = line_bytes(m), start = (u32)(load.shared - load.to->shared);
  u8 text[1024];
  for_each_line(m, load.x, load.y, GLOBAL_READ, load.line, [&](const u8* global, u32 at, u32 bytes, u32 row) {
    memset(text, 0, width);
    if (bytes) memcpy(text + at, global, bytes);
    if (m.element == ELEMENT_TF32)
      for (u32 i = 0; i < width; i += 4) {
        float value;
        memcpy(&value, text + i, 4);
        const u32 rounded = tf32_ties_even(value);
        memcpy(text + i, &rounded, 4);
      }
    for (u32 i = 0; i < width; i += 16) memcpy(load.to->shared + swizzled(start + row * width + i, m.swizzle), text + i, 16);
  });
}

void land(size_t index) {
  const Load load = loads[index];
  loads.erase(loads.begin() + (long)index);
  if (!load.to->live)
    fail("protocol", "the TMA load of line %d arrives in block %u of the cluster, which has ended", load.line, load.to->rank);
  perform(load);
  if (state.race_checks)
    race_load_done(*load.to, load.shared - load.to->shared, box_bytes(load.map), mbarrier_slot(load.mbarrier), load.line,
                   load.to->mbarriers[load.mbarrier].gathering);
  bytes_arrive(*load.to, load.mbarrier, box_bytes(load.map), load.line);
}

void perform(const TensorStore& store) {
  const TensorView& m = store.map;
  const u32 width = line_bytes(m), start = (u32)(store.shared - state.shared);
  u8 text[1024];
  for_each_line(m, store.x, store.y, GLOBAL_WRITE, store.line, [&](u8* global, u32 at, u32 bytes, u32 row) {
    for (u32 i = 0; i < width; i += 16) memcpy(text + i, state.shared + swizzled(start + row * width + i, m.swizzle), 16);
    if (bytes) memcpy(global, text + at, bytes);
  });
}

// ---- the async proxy's view of ordinary writes, for each 16 bytes of shared memory
struct Written { u64 tick; u32 thread; int line; };
std::vector<Written> written[MAX_CLUSTER];
u64 proxy_tick = 1;

}  // namespace

void proxy_begin(u32 rank) { written[rank].clear(); }

void proxy_write(i64 offset, u32 bytes, int line) {
  for (const Thread* t : home().storing)
    for (const TensorStore& store : t->stores) {
      const i64 begin = store.shared - state.shared;
      if (offset + bytes > begin && offset < begin + box_bytes(store.map))
        fail("race", "line %d writes %s while the TMA store of line %d may still read it: wait for its group, then a barrier", line,
             shared_name(offset).c_str(), store.line);
    }
  std::vector<Written>& all = written[home().rank];
  if (all.empty()) all.resize(2 * SHARED_MAP / 16);
  for (i64 i = offset / 16; i <= (offset + bytes - 1) / 16; i++) all[(size_t)i] = {proxy_tick, current->index, line};
}

void proxy_use(i64 offset, u32 bytes, const char* deed, int line) {
  const std::vector<Written>& all = written[home().rank];
  if (all.empty()) return;
  for (i64 i = offset / 16; i <= (offset + bytes - 1) / 16; i++) {
    const Written& w = all[(size_t)i];
    if (!w.tick || w.tick < state.threads[w.thread].proxy_fence_tick || w.tick < me()->proxy_fence_tick) continue;
    fail("race", "line %d: %s %s, which thread %u wrote in line %d, with no fence_proxy_async between", line, deed,
         shared_name(i * 16).c_str(), w.thread, w.line);
  }
}

void fence_proxy_async() { me()->proxy_fence_tick = ++proxy_tick; }

// ---------------------------------------------------------------- loads
void begin_tensor_copies() { loads.clear(); }

void tensor_check(const void* map, const char* what, int line) { view_of(map, what, line); }

void policy_check(u64 policy, int line) {
  if ((policy & ~3ull) != POLICY) fail("invalid", "the L2 policy in line %d is none: take it from hw::policy_evict_first or _last", line);
}

void tma_load(void* shared, const void* map, int x, int y, u64* b, u32 mask, bool multicast, int line) {
  constexpr const char* what = "tma_load";
  spend(line);
  maybe_preempt();
  const TensorView& view = view_of(map, what, line);
  const i64 offset = (u8*)shared - state.shared, barrier = (u8*)b - state.shared;
  check_place(view, offset, state.shared_bytes, shared, what, line);
  if (barrier < 0 || (u64)barrier + 8 > state.shared_bytes || barrier % 8) bad_shared_access(b, 8, 8, SHARED_WRITE, line);
  if (multicast && (!mask || mask >> state.cluster_size))
    fail("invalid", "tma_load_multicast in line %d has the mask %x in a cluster of %u blocks", line, mask, state.cluster_size);
  for (u32 rank = 0; rank < state.cluster_size; rank++) {
    BlockState& to = state.blocks[rank];
    if (multicast ? !(mask >> rank & 1) : rank != home().rank) continue;
    if (!to.live) fail("protocol", "tma_load_multicast in line %d goes to block %u of the cluster, which has ended", line, rank);
    const u32 index = find_mbarrier(to, (u64*)(to.shared + barrier), what, line);
    Mbarrier& m = to.mbarriers[index];
    if (!m.fenced) fail("protocol", "%s in line %d: no mbarrier_fence_init came after the initialisation in line %d", what, line, m.line);
    if (state.race_checks) {
      if (!race_knows(m.stamp))
        fail("race", "%s in line %d uses the mbarrier that thread %u initialised in line %d, with no barrier between", what, line, m.initialiser, m.line);
      if (rank == home().rank) proxy_use(offset, box_bytes(view), "tma_load overwrites", line);
      race_load_issued(to, offset, box_bytes(view), mbarrier_slot(index), line);
    }
    m.in_flight++;
    memset(to.shared + offset, POISON, box_bytes(view));
    loads.push_back({view, &to, to.shared + offset, x, y, line, index});
    state.counters.copies++;
    if (state.copy_mode == COPY_EARLY) land(loads.size() - 1);
  }
}

// The newest first: whoever takes one barrier's bytes for another's is found.
bool land_one_load() {
  if (loads.empty()) return false;
  land(state.copy_mode == COPY_RANDOM ? state.next_random() % loads.size() : loads.size() - 1);
  return true;
}

void maybe_land_load() {
  if (state.copy_mode == COPY_RANDOM && !loads.empty() && state.next_random() % 4 == 0) land(state.next_random() % loads.size());
}

void check_block_exit() {
  for (const Load& load : loads)
    if (load.to == state.home)
      fail("protocol", "the block ends while the TMA load of line %d into its shared memory is still in flight", load.line);
  for (const Mbarrier& m : home().mbarriers)
    if (m.bytes)
      fail("protocol", "the block ends with %lld bytes announced and not come (or the reverse) at the mbarrier of line %d", m.bytes, m.line);
}

// ---------------------------------------------------------------- stores
void tma_store(const void* map, const void* shared, int x, int y, int line) {
  constexpr const char* what = "tma_store";
  spend(line);
  maybe_preempt();
  const TensorView& view = view_of(map, what, line);
  const i64 offset = (const u8*)shared - state.shared;
  check_place(view, offset, state.shared_bytes, shared, what, line);
  if (x < 0 || y < 0)
    fail("invalid", "tma_store in line %d starts before the tensor, at (%d, %d): a load may, but a store is an illegal instruction",
         line, x, y);
  if (state.race_checks) {
    race_access(offset, box_bytes(view), false, line);
    proxy_use(offset, box_bytes(view), "tma_store reads", line);
  }
  if (me()->stores.empty()) home().storing.push_back(me());
  me()->stores.push_back({view, (u8*)shared, x, y, line});
  state.counters.copies++;
  if (state.copy_mode == COPY_EARLY) perform(me()->stores.back());
}

void tma_store_commit() { me()->store_groups.push_back(me()->stores.size()); }

void tma_store_wait(int pending, int line) {
  Thread& self = *me();
  spend(line);
  maybe_preempt();
  if ((int)self.store_groups.size() <= pending) return;
  const size_t finished = self.store_groups.size() - (size_t)pending, end = self.store_groups[finished - 1];
  for (size_t i = 0; i < end; i++) {
    if (state.race_checks) race_access(self.stores[i].shared - state.shared, box_bytes(self.stores[i].map), false, self.stores[i].line);
    perform(self.stores[i]);
  }
  self.stores.erase(self.stores.begin(), self.stores.begin() + (long)end);
  self.store_groups.erase(self.store_groups.begin(), self.store_groups.begin() + (long)finished);
  for (size_t& group : self.store_groups) group -= end;
  if (self.stores.empty()) std::erase(home().storing, &self);
}

void check_stores_exit() {
  const Thread& self = *me();
  if (!self.stores.empty())
    fail("protocol", "the thread ends while the TMA store of line %d may still read shared memory: commit it and wait for its group",
         self.stores.front().line);
}

}  // namespace emu
