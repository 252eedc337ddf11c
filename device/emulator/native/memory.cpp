// Memory with guards: inaccessible address space on both sides of every mapping, and poison inside.
//
// Pages come from one small file of POISON, mapped again and again and copied on write: a buffer of the real size costs
// memory only for the pages that somebody wrote, and reads as NaN everywhere else.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core.h"

namespace emu {

namespace {

constexpr u64 POISON_FILE = 8 << 20;

int poison_file() {
  static const int file = [] {
    const int fd = memfd_create("poison", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)POISON_FILE)) return -1;
    void* p = mmap(nullptr, POISON_FILE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return -1;
    memset(p, POISON, POISON_FILE);
    munmap(p, POISON_FILE);
    return fd;
  }();
  return file;
}

}  // namespace

u64 round_to_pages(u64 bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

u8* map_guarded(u64 bytes) {
  bytes = round_to_pages(bytes);
  if (poison_file() < 0) return nullptr;
  void* whole = mmap(nullptr, bytes + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (whole == MAP_FAILED) return nullptr;
  u8* begin = (u8*)whole + GUARD;
  for (u64 at = 0; at < bytes; at += POISON_FILE) {
    const u64 part = bytes - at < POISON_FILE ? bytes - at : POISON_FILE;
    void* p = mmap(begin + at, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, poison_file(), 0);
    if (p == MAP_FAILED) {
      munmap(whole, bytes + 2 * GUARD);
      return nullptr;
    }
  }
  return begin;
}

void unmap_guarded(u8* begin, u64 bytes) { munmap(begin - GUARD, round_to_pages(bytes) + 2 * GUARD); }

namespace {

// /proc/self/pagemap holds 8 bytes a page: bits 63 and 62 say that it is present or swapped out, bit 61 that it is still
// the file's (Linux, admin-guide/mm/pagemap). A page that was written is present or swapped, and no longer the file's.
bool written(u64 entry) { return (entry >> 62) && !(entry >> 61 & 1); }

const u8* first_altered_byte(const u8* begin, const u8* end);

}  // namespace

const u8* first_altered(const u8* begin, const u8* end) {
  static const int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  static std::vector<u64> entries(1 << 16);
  const bool whole_pages = (uintptr_t)begin % PAGE == 0 && (uintptr_t)end % PAGE == 0;
  if (map < 0 || !whole_pages) return first_altered_byte(begin, end);
  while (begin < end) {
    const u64 pages = std::min<u64>((u64)(end - begin) / PAGE, entries.size());
    const i64 got = pread(map, entries.data(), pages * 8, (off_t)((uintptr_t)begin / PAGE * 8));
    if (got != (i64)(pages * 8)) return first_altered_byte(begin, end);
    for (u64 i = 0; i < pages; i++)
      if (written(entries[i]))
        if (const u8* found = first_altered_byte(begin + i * PAGE, begin + (i + 1) * PAGE)) return found;
    begin += pages * PAGE;
  }
  return nullptr;
}

namespace {

const u8* first_altered_byte(const u8* begin, const u8* end) {
  static const std::vector<u8> clean(PAGE, POISON);
  while (begin < end) {
    const u64 part = (u64)(end - begin) < PAGE ? (u64)(end - begin) : PAGE;
    if (memcmp(begin, clean.data(), part) != 0) {
      while (*begin == POISON) begin++;
      return begin;
    }
    begin += part;
  }
  return nullptr;
}

}  // namespace

i64 shared_offset(const void* p, u64 bytes) {
  if (inside(p, bytes, state.shared, state.shared_bytes)) return (const u8*)p - state.shared;
  if (inside(p, bytes, state.static_shared, state.static_bytes)) return STATIC_OFFSET + ((const u8*)p - state.static_shared);
  return -1;
}

std::string shared_name(i64 offset) {
  if (offset >= STATIC_OFFSET) return "byte " + std::to_string(offset - STATIC_OFFSET) + " of static shared memory";
  return "byte " + std::to_string(offset) + " of shared memory";
}

// Where an address lies, in words: a thread's stack, a global buffer or shared memory, or near one of these.
std::string describe_address(const u8* address) {
  u32 thread;  // first: a stack may lie next to a guard, and an address in it belongs to nothing else
  if (on_fiber_stack(address, &thread)) return "the local memory (stack) of thread " + std::to_string(thread);
  // The nearest buffer, within its guards.
  const Span* nearest = nullptr;
  u64 nearest_distance = GUARD;
  for (u32 i = 0; i < state.span_count; i++) {
    const Span& s = state.spans[i];
    const u64 distance = address < s.begin ? (u64)(s.begin - address) : address < s.begin + s.bytes ? 0 : (u64)(address - (s.begin + s.bytes));
    if (distance < nearest_distance) nearest = &s, nearest_distance = distance;
  }
  char text[160];
  const i64 shared = address - state.shared;
  if (shared > -(i64)GUARD && shared < (i64)(SHARED_MAP + GUARD) && (u64)(shared < 0 ? -shared : shared) < nearest_distance) {
    snprintf(text, sizeof text, "byte %lld of the block's %u bytes of shared memory", shared, state.shared_bytes);
    return text;
  }
  if (nearest) {
    snprintf(text, sizeof text, "byte %lld of buffer %s, which has %llu bytes", (i64)(address - nearest->begin), nearest->name, nearest->bytes);
    return text;
  }
  snprintf(text, sizeof text, "address %p, in no buffer", (const void*)address);
  return text;
}

}  // namespace emu
