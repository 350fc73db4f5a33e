// Helpers that the CPU code shares (internal to kernels/ops). They have no
// branches, so that loops over them vectorise at the machine's width.
#pragma once

#include <cstdint>

#include "kernels/ops/element.h"

// Files that use this macro are compiled with -O3 for the vectoriser, but
// without fast-math, which would drop infinities and NaN.
#define SLUICE_INLINED __attribute__((always_inline)) inline

namespace sluice::ops {

SLUICE_INLINED float ToFloat(float value) { return value; }
SLUICE_INLINED float ToFloat(BFloat16 value) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(value.bits) << 16);
}

// Rounds to nearest, ties to even, as c10::BFloat16 does; NaN stays NaN.
SLUICE_INLINED void FromFloat(float value, float& to) { to = value; }
SLUICE_INLINED void FromFloat(float value, BFloat16& to) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  to.bits = static_cast<uint16_t>(value == value ? rounded : 0x7fc0u);
}

// Returns exp(x) for x <= 0, and 0 below -87. Method: Cephes' expf, 2^n times a
// polynomial on [-ln2/2, ln2/2].
SLUICE_INLINED float ExpOfNegative(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const float shifted = clamped * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // Moves the low bits of `shifted` (n) to the exponent. Unsigned arithmetic,
  // so that NaN does not overflow.
  const uint32_t exponent = __builtin_bit_cast(uint32_t, shifted) << 23;
  const float result =
      __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, p) + exponent);
  const float finite_or_nan = x == x ? result : x;
  return x < -87.0f ? 0.0f : finite_or_nan;
}

}  // namespace sluice::ops
