// cp.async: queued in the issuing thread, done as late as its wait allows (or at once, or by chance).
//
// From its issue until it is waited for, the destination holds poison: whoever reads it early, or still needed what it
// held before, computes with NaN.
#include <cstring>

#include "core.h"

namespace emu {

namespace {

void perform(const AsyncCopy& copy) {
  memcpy(copy.shared, copy.global, (size_t)copy.source_bytes);
  memset(copy.shared + copy.source_bytes, 0, (size_t)(copy.bytes - copy.source_bytes));
}

}  // namespace

void copy_async(void* shared, const void* global, int bytes, int source_bytes, int line) {
  spend(line);
  if (source_bytes < 0 || source_bytes > bytes)
    fail("invalid", "cp.async in line %d asks for %d source bytes of %d", line, source_bytes, bytes);
  const i64 offset = shared_offset(shared, (u64)bytes);
  if (offset < 0 || (uintptr_t)shared % bytes) bad_shared_access(shared, (u64)bytes, (u64)bytes, SHARED_WRITE, line);
  if ((uintptr_t)global % bytes) bad_global_access(global, (u64)bytes, (u64)bytes, GLOBAL_READ, line);
  if (source_bytes) global_access(global, (u32)source_bytes, 1, GLOBAL_READ, line);
  if (state.race_checks) race_copy_issued(offset, (u32)bytes, line), proxy_write(offset, (u32)bytes, line);
  if (state.profile) profile_access(shared, (u32)bytes, SHARED_WRITE, line);
  state.counters.copies++;
  const AsyncCopy copy{(u8*)shared, (const u8*)global, bytes, source_bytes, line};
  const bool early = state.copy_mode == COPY_EARLY || (state.copy_mode == COPY_RANDOM && state.next_random() % 2);
  if (early)
    perform(copy);
  else
    memset(shared, POISON, (size_t)bytes);
  if (!early || state.race_checks) me()->copies.push_back(copy);
}

void copy_commit() { me()->groups.push_back(me()->copies.size()); }

void copy_wait(int pending) {
  Thread* self = me();
  if ((int)self->groups.size() <= pending) return;
  const size_t finished = self->groups.size() - (size_t)pending, end = self->groups[finished - 1];
  for (size_t i = 0; i < end; i++) {
    const AsyncCopy& copy = self->copies[i];
    perform(copy);
    if (state.race_checks) race_copy_done(shared_offset(copy.shared, (u64)copy.bytes), (u32)copy.bytes, copy.line);
  }
  self->copies.erase(self->copies.begin(), self->copies.begin() + (long)end);
  self->groups.erase(self->groups.begin(), self->groups.begin() + (long)finished);
  for (size_t& group : self->groups) group -= end;
}

}  // namespace emu
