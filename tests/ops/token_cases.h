// Inputs of token_math.h's functions, for the tests on CPU and on CUDA.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/ops/merge_cases.h"

namespace sluice::ops {

inline float Wide(float x) { return x; }
inline float Wide(BFloat16 x) { return FromBFloat16(x); }
template <typename T>
T Narrow(float x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return x;
  } else {
    return ToBFloat16(x);
  }
}

// Allowed rounding error of a result in T, relative to the largest result.
template <typename T>
constexpr float kRounding = sizeof(T) == sizeof(float) ? 3e-6f : 4e-3f;

class Draw {
 public:
  explicit Draw(int seed) : random_(static_cast<unsigned>(seed)) {}

  template <typename T>
  std::vector<T> operator()(int64_t n, float spread = 1) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<T> values;
    for (int64_t i = 0; i < n; ++i) {
      values.push_back(Narrow<T>(normal(random_)));
    }
    return values;
  }
  // Returns one label per row. Every fifth label is -100, which is ignored.
  std::vector<int64_t> Labels(int64_t rows, int64_t width) {
    std::vector<int64_t> labels;
    for (int64_t i = 0; i < rows; ++i) {
      labels.push_back(i % 5 == 3 ? -100
                                  : static_cast<int64_t>(random_()) % width);
    }
    return labels;
  }

 private:
  std::mt19937 random_;
};

template <typename T>
std::vector<double> Doubles(const std::vector<T>& values) {
  std::vector<double> wide;
  for (const T value : values) wide.push_back(Wide(value));
  return wide;
}

}  // namespace sluice::ops
