// Intrinsics for data that is read once: loads past the caches, under the assembler's own predicates.
// Its twin for the CPU, with the same names and signatures, is device/emulator/native/stream.h.
// Forms: PTX ISA 8.x, "ld.global.nc" (.L1::no_allocate, .L2::cache_hint, .L2::128B and .L2::256B), "createpolicy", "selp".
#pragma once
#include "gemmtune/hw.cuh"

namespace hw {

// What the caches should make of a load: plain as any other; stream past the L1, the L2 fetches lines of 128 bytes; far
// likewise, 256 bytes at a time; first as stream, and the L2 gives these lines up before others. The last two from compute
// capability 8.0 on.
enum class Hint { plain, stream, far, first };

// The policy that load_stream takes; 0 where the hint needs none.
template <Hint HINT> HW_FN u64 stream_policy() {
  u64 r = 0;
  if constexpr (HINT == Hint::first) asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(r));
  return r;
}

// BYTES (2, 4, 8 or 16) from p, aligned to BYTES, as 32-bit words, where `there`; else w stays. Two bytes lie in the low half
// of one word. The predicate is the assembler's, not a branch's: a branch around each load would part the lanes and the
// schedule.
#define HW_STREAM_LOAD(FORM, DATA, FROM, GO, TAIL) \
  "{ .reg .pred go; setp.ne.s32 go, " GO ", 0; @go ld.global.nc" FORM DATA ", [" FROM "]" TAIL "; }"
#define HW_STREAM_LOADS(FORM, TAIL16, TAIL8, TAIL4)                                                                  \
  if constexpr (BYTES == 16) {                                                                                       \
    asm volatile(HW_STREAM_LOAD(FORM, ".v4.u32 { %0,%1,%2,%3 }", "%4", "%5", TAIL16)                                 \
                 : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3]) : "l"(p), "r"(go), "l"(policy));                   \
  } else if constexpr (BYTES == 8) {                                                                                 \
    asm volatile(HW_STREAM_LOAD(FORM, ".v2.u32 { %0,%1 }", "%2", "%3", TAIL8)                                        \
                 : "+r"(w[0]), "+r"(w[1]) : "l"(p), "r"(go), "l"(policy));                                           \
  } else if constexpr (BYTES == 4) {                                                                                 \
    asm volatile(HW_STREAM_LOAD(FORM, ".u32 %0", "%1", "%2", TAIL4) : "+r"(w[0]) : "l"(p), "r"(go), "l"(policy));    \
  } else {                                                                                                           \
    u16 half = (u16)w[0];                                                                                            \
    asm volatile(HW_STREAM_LOAD(FORM, ".u16 %0", "%1", "%2", TAIL4) : "+h"(half) : "l"(p), "r"(go), "l"(policy));    \
    w[0] = half;                                                                                                     \
  }
template <Hint HINT, int BYTES>
HW_FN void load_stream(u32 (&w)[BYTES < 4 ? 1 : BYTES / 4], const void* p, u64 policy, bool there) {
  const int go = there;
  if constexpr (HINT == Hint::plain) {
    HW_STREAM_LOADS("", "", "", "")
  } else if constexpr (HINT == Hint::stream) {
    HW_STREAM_LOADS(".L1::no_allocate.L2::128B", "", "", "")
  } else if constexpr (HINT == Hint::far) {
    HW_STREAM_LOADS(".L1::no_allocate.L2::256B", "", "", "")
  } else {
    HW_STREAM_LOADS(".L1::no_allocate.L2::cache_hint.L2::128B", ", %6", ", %4", ", %3")
  }
}
#undef HW_STREAM_LOADS
#undef HW_STREAM_LOAD

// A select that stays one: of "?:" the compiler may make a branch, whose two sides then wait for each other.
HW_FN float select(int condition, float yes, float no) {
  float r;
  asm("{ .reg .pred p; setp.ne.s32 p, %3, 0; selp.f32 %0, %1, %2, p; }" : "=f"(r) : "f"(yes), "f"(no), "r"(condition));
  return r;
}
// The value, of which the compiler then knows nothing.
HW_FN int opaque(int value) { asm volatile("" : "+r"(value)); return value; }

}  // namespace hw
