// Intrinsics for data that is read once, for the CPU: the twin of codegen/intrinsics/stream.cuh, with the same names and
// signatures. Hints change no values, and a load is the one that hw.h counts. Kernel sources include it as
// "gemmtune/stream.cuh".
#pragma once
#include "gemmtune/hw.cuh"

namespace hw {

enum class Hint { plain, stream, far, first };

template <Hint HINT> HW_FN u64 stream_policy() { return 0; }
template <Hint HINT, int BYTES>
HW_FN void load_stream(u32 (&w)[BYTES < 4 ? 1 : BYTES / 4], const void* p, u64 policy, bool there, HW_LINE) {
  if (!there) return;
  if constexpr (BYTES == 2) {
    w[0] = ldg((const u16*)p, line);
  } else {
    const auto v = ldg((const Pack<u32, BYTES / 4>*)p, line);
    for (int i = 0; i < BYTES / 4; i++) w[i] = v.v[i];
  }
}
HW_FN float select(int condition, float yes, float no) { return condition ? yes : no; }
HW_FN int opaque(int value) { return value; }

}  // namespace hw
