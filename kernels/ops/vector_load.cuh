// Vector loads and stores of a thread, which convert elements to and from fp32
// (internal to the .cu files).
#pragma once

#include <cstdint>

#include "kernels/ops/element.h"

namespace sluice::ops {

// The number of elements of type T in 16 bytes.
template <typename T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));

template <typename T, int kCount>
inline constexpr int kPieceBytes = kCount* static_cast<int>(sizeof(T)) < 16
                                       ? kCount* static_cast<int>(sizeof(T))
                                       : 16;

// Consecutive elements, stored as words, because each 2-byte element would use
// a register of its own.
template <typename T, int kCount>
struct alignas(kPieceBytes<T, kCount>) Piece {
  unsigned words[kCount * sizeof(T) / 4];
};

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(BFloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}
// Returns the bits of `value` in the type of the second argument. Rounds to
// nearest, ties to even, as the CPU code does; NaN stays NaN.
__device__ inline unsigned BitsOf(float value, float) {
  return __float_as_uint(value);
}
__device__ inline unsigned BitsOf(float value, BFloat16) {
  const unsigned bits = __float_as_uint(value);
  const unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return value == value ? rounded : 0x7fc0u;
}

__device__ inline void FromFloat(float value, float& to) { to = value; }
__device__ inline void FromFloat(float value, BFloat16& to) {
  to.bits = static_cast<uint16_t>(BitsOf(value, BFloat16{}));
}

template <int kCount>
__device__ inline float At(const Piece<float, kCount>& piece, int i) {
  return __uint_as_float(piece.words[i]);
}
template <int kCount>
__device__ inline float At(const Piece<BFloat16, kCount>& piece, int i) {
  const unsigned two = piece.words[i / 2];
  return __uint_as_float(i % 2 == 0 ? two << 16 : two & 0xffff0000u);
}
// Sets element i. REQUIRES: the element's bits are 0.
template <int kCount>
__device__ inline void Set(Piece<float, kCount>& piece, int i, unsigned bits) {
  piece.words[i] = bits;
}
template <int kCount>
__device__ inline void Set(Piece<BFloat16, kCount>& piece, int i,
                           unsigned bits) {
  piece.words[i / 2] |= i % 2 == 0 ? bits : bits << 16;
}

// Returns whether kCount elements exist at `at`, aligned for vector access.
template <int kCount, typename T>
__device__ inline bool IsWhole(const T* at, int there) {
  return there >= kCount &&
         reinterpret_cast<uintptr_t>(at) % kPieceBytes<T, kCount> == 0;
}

// Loads kCount elements, of which the first `there` exist; the others are 0.
template <int kCount, typename T>
__device__ inline Piece<T, kCount> LoadPiece(const T* from, int there) {
  if (IsWhole<kCount>(from, there)) {
    return *reinterpret_cast<const Piece<T, kCount>*>(from);
  }
  Piece<T, kCount> piece = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i < there) Set(piece, i, BitsOf(ToFloat(from[i]), T{}));
  }
  return piece;
}
template <int kCount, typename T>
__device__ inline void Load(const T* from, int there, float (&to)[kCount]) {
  const auto piece = LoadPiece<kCount>(from, there);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = At(piece, i);
}

template <int kCount, typename T>
__device__ inline void Store(const float (&from)[kCount], int there, T* to) {
  if (IsWhole<kCount>(to, there)) {
    Piece<T, kCount> piece = {};
#pragma unroll
    for (int i = 0; i < kCount; ++i) Set(piece, i, BitsOf(from[i], T{}));
    *reinterpret_cast<Piece<T, kCount>*>(to) = piece;
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i < there) FromFloat(from[i], to[i]);
  }
}

}  // namespace sluice::ops
