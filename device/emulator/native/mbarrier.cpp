// mbarrier: arrivals and bytes of one phase after another (PTX ISA, "Parallel Synchronization and Communication
// Instructions: mbarrier").
//
// A phase completes when all arrivals have come and all announced bytes too. The word in shared memory holds a mark and
// the barrier's index, so that a barrier that was overwritten, or never initialised, is noticed.
#include "core.h"

namespace emu {

namespace {

constexpr u64 MARK = 0x6d62ull << 48;
constexpr u32 MOST = (1 << 20) - 1;  // arrivals, and bytes of a phase

std::string name_of(BlockState& where, const u64* b) {
  const i64 offset = (const u8*)b - where.shared;
  return "the mbarrier at byte " + std::to_string(offset) + (where.rank == home().rank ? "" : " of block " + std::to_string(where.rank) + " of the cluster");
}

// What a thread other than the initialiser needs before it may use it.
void check_known(const Mbarrier& m, const char* what, int line) {
  if (state.race_checks && !race_knows(m.stamp))
    fail("race", "%s in line %d uses the mbarrier that thread %u initialised in line %d, with no barrier between", what, line,
         m.initialiser, m.line);
}

void complete_if_done(BlockState& where, Mbarrier& m, int line) {
  if (m.pending || m.bytes) return;
  if (m.in_flight)
    fail("protocol", "the phase of %s completes in line %d while %u TMA loads that count on it are still in flight: it expects too few bytes",
         name_of(where, m.word).c_str(), line, m.in_flight);
  m.phase++;
  m.pending = m.arrivals;
  m.completed = m.gathering;
  m.waiting.move_to(where.ready);
  state.counters.barriers++;
}

void arrive(BlockState& where, Mbarrier& m, const char* what, int line) {
  if (!m.pending)
    fail("protocol", "%s in line %d: more arrivals than the %u that %s expects in a phase", what, line, m.arrivals, name_of(where, m.word).c_str());
  m.pending--;
  race_release(m.gathering);
  complete_if_done(where, m, line);
}

}  // namespace

u32 find_mbarrier(BlockState& where, u64* b, const char* what, int line) {
  const u64 word = *b;
  const u32 index = (u32)word;
  if ((word & ~0xffffffffull) != MARK || index >= where.mbarriers.size() || where.mbarriers[index].word != b)
    fail("protocol", "%s in line %d: %s was never initialised, or has been overwritten", what, line, name_of(where, b).c_str());
  return index;
}

static Mbarrier& local(u64* b, const char* what, int line) {
  spend(line);
  maybe_preempt();
  if (shared_offset(b, 8) < 0 || (uintptr_t)b % 8) bad_shared_access(b, 8, 8, SHARED_WRITE, line);
  Mbarrier& m = home().mbarriers[find_mbarrier(home(), b, what, line)];
  check_known(m, what, line);
  return m;
}

void mbarrier_init(u64* b, u32 arrivals, int line) {
  spend(line);
  if (shared_offset(b, 8) < 0 || (uintptr_t)b % 8) bad_shared_access(b, 8, 8, SHARED_WRITE, line);
  if (!arrivals || arrivals > MOST) fail("invalid", "mbarrier_init in line %d with %u arrivals: 1 to %u are possible", line, arrivals, MOST);
  std::vector<Mbarrier>& all = home().mbarriers;
  for (const Mbarrier& m : all)
    if (m.word == b) fail("protocol", "mbarrier_init in line %d: %s is one already", line, name_of(home(), b).c_str());
  if (all.size() == MAX_MBARRIERS) fail("invalid", "mbarrier_init in line %d: the emulator has %u for a block", line, MAX_MBARRIERS);
  *b = MARK | all.size();
  Mbarrier m{};
  m.word = b, m.arrivals = m.pending = arrivals;
  m.initialiser = current->index, m.line = line;
  if (state.race_checks) m.stamp = race_stamp(line);
  all.push_back(m);
}

void mbarrier_fence_init() {
  for (Mbarrier& m : home().mbarriers)
    if (m.initialiser == current->index) m.fenced = true;
}

void mbarrier_arrive(u64* b, int line) { arrive(home(), local(b, "mbarrier_arrive", line), "mbarrier_arrive", line); }

void mbarrier_arrive_cluster(u64* b, u32 cta, int line) {
  spend(line);
  maybe_preempt();
  constexpr const char* what = "mbarrier_arrive_cluster";
  if (cta >= state.cluster_size) fail("invalid", "%s in line %d names block %u of a cluster of %u", what, line, cta, state.cluster_size);
  const i64 offset = shared_offset(b, 8);
  if (offset < 0 || offset % 8) bad_shared_access(b, 8, 8, SHARED_WRITE, line);
  BlockState& where = state.blocks[cta];
  if (!where.live) fail("protocol", "%s in line %d arrives in block %u of the cluster, which has ended", what, line, cta);
  u64* there = offset >= STATIC_OFFSET ? b : (u64*)(where.shared + offset);
  Mbarrier& m = where.mbarriers[find_mbarrier(where, there, what, line)];
  if (cta != home().rank && !m.fenced)
    fail("protocol", "%s in line %d: no mbarrier_fence_init came after the initialisation in line %d", what, line, m.line);
  check_known(m, what, line);
  arrive(where, m, what, line);
}

void mbarrier_expect(u64* b, u32 bytes, int line) {
  Mbarrier& m = local(b, "mbarrier_expect", line);
  if (bytes > MOST) fail("invalid", "mbarrier_expect in line %d announces %u bytes: a phase has room for %u", line, bytes, MOST);
  m.bytes += bytes;
  arrive(home(), m, "mbarrier_expect", line);
}

void bytes_arrive(BlockState& where, u32 mbarrier, u32 bytes, int line) {
  Mbarrier& m = where.mbarriers[mbarrier];
  m.bytes -= bytes;
  m.in_flight--;
  complete_if_done(where, m, line);
}

bool mbarrier_test(u64* b, u32 parity, int line) {
  Mbarrier& m = local(b, "mbarrier_test", line);
  if (parity > 1) fail("invalid", "the parity in line %d is %u: it is 0 or 1", line, parity);
  if ((m.phase & 1) == parity) {
    step_aside();
    Mbarrier& again = home().mbarriers[find_mbarrier(home(), b, "mbarrier_test", line)];
    if ((again.phase & 1) == parity) return false;
  }
  race_acquire(home().mbarriers[(u32)*b].completed);
  return true;
}

void mbarrier_wait(u64* b, u32 parity, int line) {
  const u32 index = (u32)(&local(b, "mbarrier_wait", line) - home().mbarriers.data());
  if (parity > 1) fail("invalid", "the parity in line %d is %u: it is 0 or 1", line, parity);
  while ((home().mbarriers[index].phase & 1) == parity) {
    home().mbarriers[index].waiting.add(current->index);
    static char places[MAX_MBARRIERS][2][80];
    char* place = places[index][parity];
    snprintf(place, sizeof places[0][0], "mbarrier_wait (byte %lld, parity %u)", shared_offset(b, 8), parity);
    park(place, 0, line);
    find_mbarrier(home(), b, "mbarrier_wait", line);
  }
  race_acquire(home().mbarriers[index].completed);
}

}  // namespace emu
