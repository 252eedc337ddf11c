// Conversions between fp32 and the 16-bit types and tf32, bit for bit as the PTX instruction cvt does them
// (PTX ISA, "cvt": .rn rounds to nearest even, .rna to nearest with ties away; NaN becomes the canonical 0x7fff, or
// 0x7fffffff). tests/golden holds what an H200 gave.
#pragma once
#include "cuda_words.h"

namespace emu {

static inline u16 half_from_float(float value) {
  u32 bits = __float_as_uint(value);
  const u16 sign = (u16)((bits >> 16) & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return 0x7fff;
  if (bits >= 0x47800000u) return sign | 0x7c00;  // 65536 and more: infinity
  if (bits < 0x38800000u) {                       // below 2**-14: the sum with 0.5 rounds to units of 2**-24
    const float sum = __uint_as_float(bits) + 0.5f;
    return sign | (u16)(__float_as_uint(sum) - 0x3f000000u);
  }
  bits += 0xc8000fffu + ((bits >> 13) & 1);  // re-bias the exponent and round to even; a carry to infinity is right
  return sign | (u16)(bits >> 13);
}

static inline float float_from_half(u16 half) {
  const u32 sign = (u32)(half & 0x8000) << 16, exponent = (half >> 10) & 31, mantissa = half & 1023;
  if (exponent == 31) return __uint_as_float(mantissa ? 0x7fffffffu : sign | 0x7f800000u);
  if (exponent == 0) {
    const float value = (float)mantissa * 5.9604644775390625e-08f;  // 2**-24
    return sign ? -value : value;
  }
  return __uint_as_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

static inline u16 bfloat_from_float(float value) {
  const u32 bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (u16)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

static inline float float_from_bfloat(u16 bits) { return __uint_as_float((u32)bits << 16); }

static inline u32 tf32_round(u32 bits, u32 half) {
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  return (finite ? bits + half : bits) & ~0x1fffu;
}
// As an H200 does it: of a NaN .rna keeps just the high bits (which may be those of infinity), .rn makes one NaN of all.
static inline u32 tf32_ties_away(float value) { return tf32_round(__float_as_uint(value), 0x1000u); }
static inline u32 tf32_ties_even(float value) {
  const u32 bits = __float_as_uint(value);
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffe000u : tf32_round(bits, 0x0fffu + ((bits >> 13) & 1));
}

}  // namespace emu
