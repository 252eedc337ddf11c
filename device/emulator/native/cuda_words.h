// The words of CUDA C++ that kernel sources use, for a host compiler: qualifiers, vector types, bit casts.
// Standard headers come first: libc++ itself uses names such as __noinline__, which become macros below.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __constant__ static
#define __align__(n) __attribute__((aligned(n)))
// Static shared memory: all of it in one named section, which the core poisons before each block and knows the ends of.
// (In a function template g++ ignores the section, and accesses through hw:: are then reported as out of bounds: declare
// such variables in the kernel itself.)
#define __shared__ static __attribute__((section("emu_shared")))

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };

#define EMU_VECTOR(T, ELEMENT)                                                                  \
  struct alignas(2 * sizeof(ELEMENT)) T##2 { ELEMENT x, y; };                                   \
  struct alignas(4 * sizeof(ELEMENT)) T##4 { ELEMENT x, y, z, w; };                             \
  static inline T##2 make_##T##2(ELEMENT x, ELEMENT y) { return {x, y}; }                       \
  static inline T##4 make_##T##4(ELEMENT x, ELEMENT y, ELEMENT z, ELEMENT w) { return {x, y, z, w}; }
EMU_VECTOR(float, float)
EMU_VECTOR(int, int)
EMU_VECTOR(uint, unsigned)
#undef EMU_VECTOR

static inline float __uint_as_float(u32 bits) { return __builtin_bit_cast(float, bits); }
static inline u32 __float_as_uint(float value) { return __builtin_bit_cast(u32, value); }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
