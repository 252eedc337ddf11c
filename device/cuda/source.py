"""CUDA source of the verifier's kernels (:mod:`gemmtune.device.cuda.helpers` launches them). No header is included."""

from __future__ import annotations

from gemmtune.device.elementwise import TYPES_SOURCE

_COMMON = r"""
#define FN __device__ __forceinline__
#define EACH(i, count) \
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (count); i += (i64)gridDim.x * blockDim.x

// CuPy compiles with -ftz=true, under which a plain conversion loses subnormals.
FN double wide(float x) { double r; asm("cvt.f64.f32 %0, %1;" : "=d"(r) : "f"(x)); return r; }
template <class T> FN double wide(T x) { return wide(to_float(x)); }

// splitmix64 (Steele, Lea, Flood 2014): every element's bits are a function of (seed, index) alone
FN u64 mix(u64 x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Standard normal values by Box and Muller.
template <class T> FN void normal(T* p, i64 rows, i64 columns, i64 ld, u64 seed) {
  const float unit = 5.9604644775390625e-8f;  // 2^-24
  for (EACH(i, rows * columns)) {
    const u64 bits = mix(mix(seed) ^ (u64)i);
    const float u = ((float)(u32)(bits >> 40) + 0.5f) * unit, v = (float)(u32)(bits & 0xffffffu) * unit;
    from_float(p[i / columns * ld + i % columns], sqrtf(-2.f * logf(u)) * cospif(2.f * v));
  }
}

// Which rows or columns: indices[first], indices[first + 1], ..., or first, first + 1, ... where indices is null.
struct Axis { const i64* indices; i64 count, first; };
FN i64 at(const Axis& axis, i64 i) { return axis.indices ? axis.indices[axis.first + i] : axis.first + i; }

template <class T> FN void gather(const T* p, i64 ld, Axis rows, Axis columns, int absolute, double* out) {
  for (EACH(i, rows.count * columns.count)) {
    const double x = wide(p[at(rows, i / columns.count) * ld + at(columns, i % columns.count)]);
    out[i] = absolute ? fabs(x) : x;
  }
}

// reference and scale of alpha * . + beta * c + bias
template <class T> FN void epilogue(double* reference, double* scale, Axis rows, Axis columns, double alpha,
                                    double beta, const T* c, i64 ldc, const T* bias) {
  for (EACH(i, rows.count * columns.count)) {
    const i64 row = at(rows, i / columns.count), column = at(columns, i % columns.count);
    double r = alpha * reference[i], s = fabs(alpha) * scale[i];
    if (c && beta != 0.) {
      const double x = wide(c[row * ldc + column]);
      r += beta * x;
      s += fabs(beta) * fabs(x);
    }
    if (bias) {
      const double x = wide(bias[column]);
      r += x;
      s += fabs(x);
    }
    reference[i] = r;
    scale[i] = s;
  }
}

struct Stats { u64 relative, excess, mismatches, wrong, unwritten, first, damage; };
struct Law { double accumulation, rounding, largest, tiny; };

template <class T> FN bool poisoned(const T& value) {
  const unsigned char* bytes = reinterpret_cast<const unsigned char*>(&value);
  bool all = true;
  for (int b = 0; b < (int)sizeof(T); b++) all &= bytes[b] == 0xff;
  return all;
}

// gemmtune.device.verify.compare, element by element. Non-negative doubles order as their bits do.
template <class T> FN void compare(const T* d, i64 ldd, Axis rows, Axis columns, const double* reference,
                                   const double* scale, Law law, Stats* stats) {
  double worst_relative = 0., worst_excess = 0.;
  u64 mismatches = 0, wrong = 0, unwritten = 0, first = ~0ull;
  const double infinity = __longlong_as_double(0x7ff0000000000000ll);
  for (EACH(i, rows.count * columns.count)) {
    const T raw = d[at(rows, i / columns.count) * ldd + at(columns, i % columns.count)];
    const double value = wide(raw), ref = reference[i], s = scale[i], size = fabs(ref);
    const double tolerance = law.accumulation * s + law.rounding * size + law.tiny;
    const bool overflows = isfinite(ref) && size - tolerance > law.largest * (1 + law.rounding);
    const double expected = overflows ? copysign(infinity, ref) : ref;
    bool same = (isnan(expected) && isnan(value)) || expected == value;
    same |= size + tolerance >= law.largest && isinf(value) && signbit(value) == signbit(ref);
    if (same) continue;
    double excess = infinity;
    if (isfinite(expected) && isfinite(value)) {
      const double difference = fabs(value - expected);
      if (s != 0.) excess = difference / tolerance;
      worst_relative = fmax(worst_relative, s == 0. ? infinity : fmax(difference - law.tiny, 0.) / s);
      worst_excess = fmax(worst_excess, excess);
    } else {
      mismatches++;
    }
    if (excess > 1.) {
      wrong++;
      first = (u64)i < first ? (u64)i : first;
      unwritten += poisoned(raw);
    }
  }
  for (int lane = 16; lane; lane >>= 1) {
    worst_relative = fmax(worst_relative, __shfl_xor_sync(~0u, worst_relative, lane));
    worst_excess = fmax(worst_excess, __shfl_xor_sync(~0u, worst_excess, lane));
  }
  if (threadIdx.x % 32 == 0) {
    atomicMax(&stats->relative, (u64)__double_as_longlong(worst_relative));
    atomicMax(&stats->excess, (u64)__double_as_longlong(worst_excess));
  }
  if (mismatches) atomicAdd(&stats->mismatches, mismatches);
  if (wrong) {
    atomicAdd(&stats->wrong, wrong);
    atomicAdd(&stats->unwritten, unwritten);
    atomicMin(&stats->first, first);
  }
}

// Counts bytes that are not `byte` in columns [skip, width) of rows `pitch` bytes apart.
extern "C" __global__ void changed(const unsigned char* p, i64 rows, i64 pitch, i64 skip, i64 width, int byte,
                                   u64* count) {
  u64 found = 0;
  for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
    const unsigned char* line = p + row * pitch + skip;
    for (EACH(i, width - skip)) found += line[i] != byte;
  }
  if (found) atomicAdd(count, found);
}

#define AXES const i64* rows, i64 row_count, i64 first_row, const i64* columns, i64 column_count, i64 first_column
#define ROWS Axis{rows, row_count, first_row}
#define COLUMNS Axis{columns, column_count, first_column}
#define ENTRY extern "C" __global__ void
"""

_INSTANCE = r"""
ENTRY normal_@(@* p, i64 rows, i64 columns, i64 ld, u64 seed) { normal(p, rows, columns, ld, seed); }
ENTRY gather_@(const @* p, i64 ld, AXES, int absolute, double* out) { gather(p, ld, ROWS, COLUMNS, absolute, out); }
ENTRY epilogue_@(double* reference, double* scale, AXES, double alpha, double beta, const @* c, i64 ldc,
                 const @* bias) {
  epilogue(reference, scale, ROWS, COLUMNS, alpha, beta, c, ldc, bias);
}
ENTRY compare_@(const @* d, i64 ldd, AXES, const double* reference, const double* scale,
                double accumulation, double rounding, double largest, double tiny, Stats* stats) {
  compare(d, ldd, ROWS, COLUMNS, reference, scale, Law{accumulation, rounding, largest, tiny}, stats);
}
"""

SOURCE = TYPES_SOURCE + _COMMON + "".join(_INSTANCE.replace("@", name) for name in ("float", "f16", "bf16"))
