// Inputs and the fp64 reference of the merge, for the tests on CPU and on CUDA.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/ops/merge.h"

namespace sluice::ops {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

// (o, lse) of one side, row-major: o [rows, heads, dim], lse [heads, rows].
struct Side {
  std::vector<float> o, lse;
};

inline MergeShape Contiguous(int64_t rows, int64_t heads, int64_t dim) {
  const RowHeadStrides o = {heads * dim, dim};
  const RowHeadStrides lse = {1, rows};
  return {rows, heads, dim, o, lse, o, lse};
}

inline Side RandomSide(const MergeShape& shape, float spread, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<float> o(0, 1), lse(0, spread);
  Side side;
  side.o.resize(static_cast<size_t>(shape.rows * shape.heads * shape.dim));
  side.lse.resize(static_cast<size_t>(shape.rows * shape.heads));
  for (float& x : side.o) x = o(random);
  for (float& x : side.lse) x = lse(random);
  return side;
}

inline BFloat16 ToBFloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
inline float FromBFloat16(BFloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

// Computes the formula of merge.h in fp64, for a contiguous layout.
inline Side ReferenceMerge(const MergeShape& shape, const Side& a,
                           const Side& b) {
  Side merged = a;
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const auto l = static_cast<size_t>(head * shape.rows + row);
      const double m = std::max(a.lse[l], b.lse[l]);
      const bool nothing = std::isinf(m);
      const double wa = nothing ? 0 : std::exp(a.lse[l] - m);
      const double wb = nothing ? 0 : std::exp(b.lse[l] - m);
      merged.lse[l] = static_cast<float>(m + (nothing ? 0 : std::log(wa + wb)));
      for (int64_t i = 0; i < shape.dim; ++i) {
        const auto e =
            static_cast<size_t>((row * shape.heads + head) * shape.dim + i);
        const double from_a = wa == 0 ? 0 : wa * a.o[e];
        const double from_b = wb == 0 ? 0 : wb * b.o[e];
        merged.o[e] =
            nothing ? 0.0f : static_cast<float>((from_a + from_b) / (wa + wb));
      }
    }
  }
  return merged;
}

}  // namespace sluice::ops
