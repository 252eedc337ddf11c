// wgmma: matrices in shared memory multiplied by a warpgroup, asynchronously (PTX ISA, "Asynchronous Warpgroup Level
// Matrix Multiply-Accumulate Operations": register fragments, matrix descriptors, strides, canonical layouts).
//
// An operation is queued by each of the 128 threads and done as late as its wait allows, from what shared memory holds
// then. Until then its accumulators hold poison; whoever reads them early computes with NaN, and whoever writes them is
// found. All 128 threads must have asked for the same.
#include <algorithm>
#include <cstring>

#include "core.h"
#include "numbers.h"

namespace emu {

namespace {

constexpr u64 SWIZZLE_128 = 1ull << 62;
constexpr u32 SIGNALLING = 0x7fa5a5a5;  // a NaN that any arithmetic alters
constexpr u32 LINE = 128;  // bytes of a line of the swizzled unit, which has 8

u32 element_bytes(const WgmmaShape& s) { return s.type == WGMMA_TF32 ? 4 : 2; }
int depth(const WgmmaShape& s) { return s.type == WGMMA_TF32 ? 8 : 16; }

u32 field(u64 descriptor, int bit) { return (u32)(descriptor >> bit & 0x3fff) << 4; }

// Where element (r, k) of an operand lies: r counts its M or N. Canonical layouts under the 128-byte swizzle, in bytes:
// K-major: 8 rows of 128 bytes, then the next 8 `stride` further. MN-major: 8 lines of k, each 64 of r; `stride` to the
// next 8 of k, `leading` to the next 64 of r.
u32 address_of(u64 descriptor, bool transposed, u32 bytes, u32 r, u32 k) {
  const u32 start = field(descriptor, 0), leading = field(descriptor, 16), stride = field(descriptor, 32);
  const u32 plain = transposed ? start + r / 64 * leading + r % 64 * bytes + k / 8 * stride + k % 8 * LINE
                               : start + r / 8 * stride + r % 8 * LINE + k * bytes;
  return plain ^ (plain >> 3 & 0x70);
}

float convert(const u8* p, WgmmaType type) {
  if (type == WGMMA_TF32) {
    u32 bits;
    memcpy(&bits, p, 4);
    return __uint_as_float(bits & ~0x1fffu);
  }
  u16 bits;
  memcpy(&bits, p, 2);
  return type == WGMMA_BF16 ? float_from_bfloat(bits) : float_from_half(bits);
}

// Calls use(offset) for the 16-byte chunks that an operand of `rows` rows covers.
template <class F> void for_each_chunk(u64 descriptor, const WgmmaShape& s, bool transposed, u32 rows, F use) {
  const u32 bytes = element_bytes(s), per_chunk = 16 / bytes;
  if (transposed) {
    for (u32 k = 0; k < (u32)depth(s); k++)
      for (u32 r = 0; r < rows; r += per_chunk) use(address_of(descriptor, true, bytes, r, k));
  } else {
    for (u32 r = 0; r < rows; r++)
      for (u32 k = 0; k < (u32)depth(s); k += per_chunk) use(address_of(descriptor, false, bytes, r, k));
  }
}

void for_each_read(const WgmmaOp& op, bool begins) {
  const WgmmaShape& s = *op.shape;
  const u32 slot = wgmma_slot(current->index / WARPGROUP);
  const auto use = [&](u32 offset) {
    if (begins) proxy_use(offset, 16, "wgmma reads", op.line);
    race_async_read(offset, 16, slot, op.line);
  };
  for_each_chunk(op.a, s, s.transposed_a, 64, use);
  for_each_chunk(op.b, s, s.transposed_b, (u32)s.n, use);
}

void check_operand(u64 descriptor, const WgmmaShape& s, bool transposed, u32 rows, int line) {
  if ((descriptor & 0xc000000000000000ull) != SWIZZLE_128 || descriptor >> 49 & 7)
    fail("invalid", "line %d: %016llx is no descriptor of a tile with the 128-byte swizzle and base offset 0", line, descriptor);
  if (transposed && s.type == WGMMA_TF32) fail("invalid", "line %d: wgmma with tf32 has no MN-major operands", line);
  const u32 bytes = element_bytes(s), stride = field(descriptor, 32), leading = field(descriptor, 16);
  if (stride % 1024 || (transposed && rows > 64 && leading % 1024))
    fail("invalid", "line %d: a descriptor's strides, %u and %u bytes, are not multiples of the swizzled unit's 1024", line, leading, stride);
  const u32 last = transposed ? field(descriptor, 0) + (rows - 1) / 64 * leading + (u32)(depth(s) - 1) / 8 * stride + 7 * LINE + (rows - 1) % 64 * bytes
                              : field(descriptor, 0) + (rows - 1) / 8 * stride + (rows - 1) % 8 * LINE + 31;
  if (last >= state.shared_bytes)
    fail("out_of_bounds", "line %d: a wgmma operand reaches byte %u of the block's %u bytes of shared memory", line, last, state.shared_bytes);
}

// ---- accumulators
// The array of `d`, in flight from now on.
u32 accumulator_of(Thread& self, float* d, u32 count, int line) {
  u32 index = 0;
  while (index < self.accumulators.size() && self.accumulators[index].d != d) index++;
  if (index == self.accumulators.size()) self.accumulators.push_back({d, count, 0, {}});
  Accumulator& a = self.accumulators[index];
  if (!a.in_flight++) {
    const bool untouched = a.count == count && a.values.size() == count && !memcmp(a.values.data(), d, count * 4);
    if (!self.wgmma_fenced && !untouched)
      fail("protocol", "line %d: wgmma takes accumulators that were written since the last wgmma_fence", line);
    a.count = count;
    a.values.assign(d, d + count);
    std::fill_n((u32*)d, count, SIGNALLING);
  } else if (a.count != count) {
    fail("invalid", "line %d: wgmma of another shape than the one in flight on the same accumulators", line);
  }
  return index;
}

void check_untouched(const Thread& t, const Accumulator& a, int line) {
  const u32* bits = (const u32*)a.d;
  if (std::any_of(bits, bits + a.count, [](u32 b) { return b != SIGNALLING; }))
    fail("protocol", "thread %u wrote accumulators of the wgmma in line %d before wgmma_wait", t.index, line);
}

// D[64][n] and back: warp w has rows 16w .. 16w + 15; lane 4g + t has columns 8j + 2t, + 1 of rows g and g + 8.
template <class F> void for_each_fragment(Thread* group, u32 accumulator, int n, F move) {
  for (u32 i = 0; i < WARPGROUP; i++) {
    float* values = group[i].accumulators[accumulator].values.data();
    const int row = (int)(i / 32 * 16 + i % 32 / 4), column = (int)(i % 4) * 2;
    for (int j = 0; j < n / 8; j++)
      for (int e = 0; e < 4; e++) move(values[4 * j + e], (row + e / 2 * 8) * n + 8 * j + column + e % 2);
  }
}

float d[64 * 256], b_rows[16][256], a_rows[64][16];

void multiply(const WgmmaOp& op) {
  const WgmmaShape& s = *op.shape;
  const u32 bytes = element_bytes(s);
  const int n = s.n, k_end = depth(s);
  for (int r = 0; r < 64; r++)
    for (int k = 0; k < k_end; k++) a_rows[r][k] = convert(state.shared + address_of(op.a, s.transposed_a, bytes, (u32)r, (u32)k), s.type);
  for (int r = 0; r < n; r++)
    for (int k = 0; k < k_end; k++) b_rows[k][r] = convert(state.shared + address_of(op.b, s.transposed_b, bytes, (u32)r, (u32)k), s.type);
  if (!op.accumulate) memset(d, 0, (size_t)(64 * n) * sizeof(float));
  for (int r = 0; r < 64; r++) {
    float* row = d + r * n;
    for (int k = 0; k < k_end; k++) {
      const float a = a_rows[r][k];
      for (int j = 0; j < n; j++) row[j] += a * b_rows[k][j];
    }
  }
}

// Does the first `count` operations of the warpgroup, and gives back the accumulators that nothing is in flight on.
void perform(Thread* group, size_t count) {
  for (u32 i = 1; i < WARPGROUP; i++)
    for (size_t j = 0; j < count; j++) {
      const WgmmaOp &mine = group[0].wgmmas[j], &other = group[i].wgmmas[j];
      if (mine.shape != other.shape || mine.a != other.a || mine.b != other.b || mine.accumulate != other.accumulate ||
          mine.accumulator != other.accumulator || mine.line != other.line)
        fail("divergence", "threads %u and %u of a warpgroup issued different wgmma, in lines %d and %d", group[0].index, group[i].index,
             mine.line, other.line);
    }
  for (size_t j = 0; j < count; j++) {
    const WgmmaOp& op = group[0].wgmmas[j];
    if (state.race_checks) for_each_read(op, false);
    const bool first = j == 0 || group[0].wgmmas[j - 1].accumulator != op.accumulator;
    const bool last = j + 1 == count || group[0].wgmmas[j + 1].accumulator != op.accumulator;
    if (first) for_each_fragment(group, op.accumulator, op.shape->n, [](float value, int at) { d[at] = value; });
    multiply(op);
    if (last) for_each_fragment(group, op.accumulator, op.shape->n, [](float& value, int at) { value = d[at]; });
  }
  for (u32 i = 0; i < WARPGROUP; i++) {
    Thread& t = group[i];
    for (size_t j = 0; j < count; j++) {
      Accumulator& a = t.accumulators[t.wgmmas[j].accumulator];
      if (--a.in_flight) continue;
      check_untouched(t, a, t.wgmmas[j].line);
      memcpy(a.d, a.values.data(), a.count * 4);
    }
    t.wgmmas.erase(t.wgmmas.begin(), t.wgmmas.begin() + (long)count);
  }
}

}  // namespace

u64 wgmma_descriptor(const void* shared, u32 leading_bytes, u32 stride_bytes, int line) {
  const i64 offset = (const u8*)shared - state.shared;
  if (offset < 0 || offset >= (i64)state.shared_bytes) bad_shared_access(shared, 1, 1, SHARED_READ, line);
  if (offset % 16 || leading_bytes % 16 || stride_bytes % 16)
    fail("misaligned", "line %d: a descriptor's address and strides must be multiples of 16 bytes", line);
  if (leading_bytes >= 1 << 18 || stride_bytes >= 1 << 18) fail("invalid", "line %d: a descriptor's stride is 256 KB or more", line);
  return (u64)offset >> 4 | (u64)(leading_bytes >> 4) << 16 | (u64)(stride_bytes >> 4) << 32 | SWIZZLE_128;
}

void wgmma_fence() { me()->wgmma_fenced = true; }

void wgmma_issue(const WgmmaShape* shape, float* d, u64 a, u64 b, bool accumulate, int line) {
  spend(line);
  Thread& self = *me();
  if ((self.index / WARPGROUP + 1) * WARPGROUP > state.thread_count)
    fail("divergence", "line %d: wgmma needs a whole warpgroup, and the last threads of the block are none", line);
  if (self.index % WARPGROUP == 0) {
    check_operand(a, *shape, shape->transposed_a, 64, line);
    check_operand(b, *shape, shape->transposed_b, (u32)shape->n, line);
  }
  const u32 accumulator = accumulator_of(self, d, (u32)shape->n / 2, line);
  self.wgmmas.push_back({shape, a, b, accumulate, accumulator, line});
  if (state.race_checks && self.index % WARPGROUP == 0) for_each_read(self.wgmmas.back(), true);
}

void wgmma_commit() { me()->wgmma_groups.push_back(me()->wgmmas.size()); }

void wgmma_wait(int pending, int line) {
  spend(line);
  maybe_preempt();
  Thread& self = *me();
  self.wgmma_fenced = false;
  if ((int)self.wgmma_groups.size() <= pending) return;
  const u32 index = self.index / WARPGROUP;
  const bool last = meet_warpgroup("wgmma_wait", pending, line);
  if (last) {
    Thread* group = state.threads + index * WARPGROUP;
    const size_t finished = group[0].wgmma_groups.size() - (size_t)pending;
    for (u32 i = 0; i < WARPGROUP; i++)
      if (group[i].wgmma_groups != group[0].wgmma_groups || group[i].wgmmas.size() != group[0].wgmmas.size())
        fail("divergence", "threads %u and %u of a warpgroup wait in line %d with different wgmma in flight", group[0].index, group[i].index, line);
    const size_t end = group[0].wgmma_groups[finished - 1];
    perform(group, end);
    for (u32 i = 0; i < WARPGROUP; i++) {
      auto& groups = group[i].wgmma_groups;
      groups.erase(groups.begin(), groups.begin() + (long)finished);
      for (size_t& g : groups) g -= end;
    }
    if (state.race_checks) race_async_reads_done(wgmma_slot(index), index * WARPGROUP, WARPGROUP);
    release_warpgroup();
  }
}

void check_wgmma_exit() {
  const Thread& self = *me();
  if (!self.wgmmas.empty()) fail("protocol", "the thread ends while the wgmma of line %d is in flight: commit it and wait for it", self.wgmmas.front().line);
}

}  // namespace emu
