// Warp collectives: the rendezvous of lanes, shuffles, ldmatrix, stmatrix and mma.sync.
//
// Lanes that reach a collective wait until all lanes of its mask have come; the last one does the work for all.
// Fragment layouts: PTX ISA, "Matrix fragments for mma.m16n8k8" and "... m16n8k16", and "ldmatrix". With g = lane / 4
// and t = lane % 4, D[g][2t], D[g][2t+1], D[g+8][2t], D[g+8][2t+1] are d0..d3.
#include <cstring>

#include "core.h"
#include "numbers.h"

namespace emu {

void warp_collective(u32 mask, Collective operation, void* argument, const char* name, bool aligned, int line) {
  Thread* self = me();
  const u32 bit = 1u << self->lane;
  spend(line);
  maybe_preempt();
  if (!(mask & bit)) fail("divergence", "lane %u calls %s in line %d with mask %08x, which leaves it out", self->lane, name, line, mask);
  PendingCollective* pending = nullptr;
  for (auto& p : home().warps[self->warp].pending)
    if (p.used && (p.mask & mask)) pending = &p;
  if (!pending) {
    for (auto& p : home().warps[self->warp].pending)
      if (!p.used) pending = &p;
    if (!pending) fail("divergence", "warp %u has parted into more than 4 groups at %s in line %d", self->warp, name, line);
    pending->used = true, pending->mask = mask, pending->arrived = 0;
    pending->operation = operation, pending->line = line, pending->name = name;
  }
  const bool same = pending->mask == mask && pending->operation == operation && !(pending->arrived & bit);
  if (!same || (aligned && pending->line != line))
    fail("divergence", "lane %u of warp %u is at %s in line %d with mask %08x while other lanes are at %s in line %d with mask %08x",
         self->lane, self->warp, name, line, mask, pending->name, pending->line, pending->mask);
  pending->arguments[self->lane] = argument;
  pending->arrived |= bit;
  if (pending->arrived != mask) return park(name, mask, line);
  state.counters.collectives++;
  pending->used = false;
  operation(pending->arguments, mask);
  home().ready.add_lanes(self->warp, mask);
}

void warp_barrier(void**, u32 mask) { race_warp_synced(current->warp, mask); }

void shuffle(void** arguments, u32 mask) {
  for (u32 lane = 0; lane < WARP; lane++) {
    if (!(mask >> lane & 1)) continue;
    auto* a = (ShuffleArgument*)arguments[lane];
    if (!(mask >> a->source & 1)) fail("divergence", "a shuffle of lane %u reads lane %d, which takes no part", lane, a->source);
    a->result = ((ShuffleArgument*)arguments[a->source])->value;
  }
}

// ---------------------------------------------------------------- ldmatrix
namespace {

// COUNT matrices of 8 rows x 8 elements of 16 bits; the addresses come from lanes 0 .. 8 * COUNT - 1.
template <int COUNT, bool TRANSPOSED> void ldmatrix(void** arguments) {
  u16 matrix[COUNT][8][8];
  Thread* const last = me();
  for (int lane = 0; lane < 8 * COUNT; lane++) {
    auto* a = (LdmatrixArgument*)arguments[lane];
    current = &state.threads[last->warp * WARP + lane];  // the access, and a fault, is that of the addressing lane
    shared_access(a->row, 16, 16, SHARED_READ, a->line);
    memcpy(matrix[lane / 8][lane % 8], a->row, 16);
  }
  current = last;
  for (int lane = 0; lane < (int)WARP; lane++) {
    u32* r = ((LdmatrixArgument*)arguments[lane])->registers;
    const int g = lane / 4, t = lane % 4 * 2;
    for (int i = 0; i < COUNT; i++)
      r[i] = TRANSPOSED ? matrix[i][t][g] | (u32)matrix[i][t + 1][g] << 16 : matrix[i][g][t] | (u32)matrix[i][g][t + 1] << 16;
  }
}

// The way back: lane l / 4 of the fragment holds a row (transposed: a column) of each of the 4 matrices.
template <bool TRANSPOSED> void stmatrix(void** arguments) {
  u16 matrix[4][8][8];
  for (int lane = 0; lane < (int)WARP; lane++) {
    const u32* r = ((StmatrixArgument*)arguments[lane])->registers;
    const int g = lane / 4, t = lane % 4 * 2;
    for (int i = 0; i < 4; i++)
      for (int j = 0; j < 2; j++) (TRANSPOSED ? matrix[i][t + j][g] : matrix[i][g][t + j]) = (u16)(r[i] >> 16 * j);
  }
  Thread* const last = me();
  for (int lane = 0; lane < (int)WARP; lane++) {
    auto* a = (StmatrixArgument*)arguments[lane];
    current = &state.threads[last->warp * WARP + lane];  // the access, and a fault, is that of the addressing lane
    shared_access(a->row, 16, 16, SHARED_WRITE, a->line);
    memcpy(a->row, matrix[lane / 8][lane % 8], 16);
  }
  current = last;
}

// ---------------------------------------------------------------- mma
// a[16][K] . b[K][8] added onto the fragments d of all lanes, k in ascending order.
template <int K> void multiply(void** arguments, const float (&a)[16][K], const float (&b)[K][8]) {
  float d[16][8];
  for (int lane = 0; lane < (int)WARP; lane++) {
    const float* in = ((MmaArgument*)arguments[lane])->d;
    const int g = lane / 4, t = lane % 4 * 2;
    d[g][t] = in[0], d[g][t + 1] = in[1], d[g + 8][t] = in[2], d[g + 8][t + 1] = in[3];
  }
  for (int i = 0; i < 16; i++)
    for (int k = 0; k < K; k++)
      for (int j = 0; j < 8; j++) d[i][j] += a[i][k] * b[k][j];
  for (int lane = 0; lane < (int)WARP; lane++) {
    float* out = ((MmaArgument*)arguments[lane])->d;
    const int g = lane / 4, t = lane % 4 * 2;
    out[0] = d[g][t], out[1] = d[g][t + 1], out[2] = d[g + 8][t], out[3] = d[g + 8][t + 1];
  }
}

// 16-bit elements, two a register, K = 8 or 16: a0 = A[g][2t..], a1 = A[g+8][2t..], then the same at k + 8.
template <int K, float (*CONVERT)(u16)> void mma_16bit(void** arguments) {
  float a[16][K], b[K][8];
  for (int lane = 0; lane < (int)WARP; lane++) {
    auto* m = (MmaArgument*)arguments[lane];
    const int g = lane / 4, t = lane % 4 * 2;
    for (int i = 0; i < K / 4; i++) {
      const int row = g + i % 2 * 8, k = t + i / 2 * 8;
      a[row][k] = CONVERT((u16)m->a[i]), a[row][k + 1] = CONVERT((u16)(m->a[i] >> 16));
    }
    for (int i = 0; i < K / 8; i++) {
      const int k = t + i * 8;
      b[k][g] = CONVERT((u16)m->b[i]), b[k + 1][g] = CONVERT((u16)(m->b[i] >> 16));
    }
  }
  multiply<K>(arguments, a, b);
}

}  // namespace

void ldmatrix_x2(void** arguments, u32) { ldmatrix<2, false>(arguments); }
void ldmatrix_x2_trans(void** arguments, u32) { ldmatrix<2, true>(arguments); }
void ldmatrix_x4(void** arguments, u32) { ldmatrix<4, false>(arguments); }
void ldmatrix_x4_trans(void** arguments, u32) { ldmatrix<4, true>(arguments); }

void stmatrix_x4(void** arguments, u32) { stmatrix<false>(arguments); }
void stmatrix_x4_trans(void** arguments, u32) { stmatrix<true>(arguments); }

void mma_k8_f16(void** arguments, u32) { mma_16bit<8, float_from_half>(arguments); }
void mma_k16_f16(void** arguments, u32) { mma_16bit<16, float_from_half>(arguments); }
void mma_k16_bf16(void** arguments, u32) { mma_16bit<16, float_from_bfloat>(arguments); }

// tf32: a0 = A[g][t], a1 = A[g+8][t], a2 = A[g][t+4], a3 = A[g+8][t+4]; the low 13 bits of each operand are ignored.
void mma_k8_tf32(void** arguments, u32) {
  constexpr u32 KEPT = ~0x1fffu;
  float a[16][8], b[8][8];
  for (int lane = 0; lane < (int)WARP; lane++) {
    auto* m = (MmaArgument*)arguments[lane];
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++) a[g + i % 2 * 8][t + i / 2 * 4] = __uint_as_float(m->a[i] & KEPT);
    for (int i = 0; i < 2; i++) b[t + i * 4][g] = __uint_as_float(m->b[i] & KEPT);
  }
  multiply<8>(arguments, a, b);
}

}  // namespace emu
