#include "kernels/ops/merge.h"

#include <algorithm>
#include <limits>

#include "kernels/ops/vector_math.h"

// Compiles a function with and without AVX2; the loader selects one.
#define SLUICE_VECTORISED \
  __attribute__((target_clones("arch=haswell", "default")))

namespace sluice::ops {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kRowsAtOnce = 256;

// Computes log(1 + x) for x in [0, 1]: 2 atanh(z) with z = x / (2 + x) <= 1/3.
inline float LogOfOnePlus(float x) {
  const float z = x / (2.0f + x);
  const float s = z * z;
  float p = 1.0f / 15.0f;
  p = p * s + 1.0f / 13.0f;
  p = p * s + 1.0f / 11.0f;
  p = p * s + 1.0f / 9.0f;
  p = p * s + 1.0f / 7.0f;
  p = p * s + 1.0f / 5.0f;
  p = p * s + 1.0f / 3.0f;
  return 2.0f * z + 2.0f * z * s * p;
}

struct Weights {
  float running[kRowsAtOnce];
  float block[kRowsAtOnce];
};

// Computes the weights of running result and block for one head; merges lse.
SLUICE_VECTORISED void MergeLse(int64_t rows, float* __restrict lse,
                                int64_t stride,
                                const float* __restrict block_lse,
                                int64_t block_stride,
                                Weights& __restrict weights) {
  float a[kRowsAtOnce], b[kRowsAtOnce];
  for (int64_t i = 0; i < rows; ++i) a[i] = lse[i * stride];
  for (int64_t i = 0; i < rows; ++i) b[i] = block_lse[i * block_stride];
  for (int64_t i = 0; i < rows; ++i) {
    const float low = a[i] < b[i] ? a[i] : b[i];
    const float high = a[i] < b[i] ? b[i] : a[i];
    // The smaller side's weight divided by the larger side's; 0 and not NaN if
    // the smaller lse is -inf.
    const float ratio =
        low == kMinusInfinity ? 0.0f : ExpOfNegative(low - high);
    const float larger = 1.0f / (1.0f + ratio);
    const float smaller = ratio * larger;
    weights.running[i] =
        a[i] == kMinusInfinity ? 0.0f : (a[i] < b[i] ? smaller : larger);
    weights.block[i] =
        b[i] == kMinusInfinity ? 0.0f : (a[i] < b[i] ? larger : smaller);
    a[i] = high + LogOfOnePlus(ratio);
  }
  for (int64_t i = 0; i < rows; ++i) lse[i * stride] = a[i];
}

// A side of weight 0 is not read: it may be uninitialised or NaN.
template <typename T>
SLUICE_INLINED void MergeRow(int64_t dim, float* __restrict o, float running,
                             const T* __restrict block, float weight) {
  if (weight == 0.0f) {
    if (running == 0.0f) std::fill_n(o, dim, 0.0f);
    return;
  }
  if (running == 0.0f) {
    for (int64_t i = 0; i < dim; ++i) o[i] = weight * ToFloat(block[i]);
    return;
  }
  for (int64_t i = 0; i < dim; ++i) {
    o[i] = running * o[i] + weight * ToFloat(block[i]);
  }
}

SLUICE_VECTORISED void MergeRows(int64_t rows, int64_t dim, float* o,
                                 int64_t stride, const float* block,
                                 int64_t block_stride, const Weights& weights) {
  for (int64_t i = 0; i < rows; ++i) {
    MergeRow(dim, o + i * stride, weights.running[i], block + i * block_stride,
             weights.block[i]);
  }
}

SLUICE_VECTORISED void MergeRows(int64_t rows, int64_t dim, float* o,
                                 int64_t stride, const BFloat16* block,
                                 int64_t block_stride, const Weights& weights) {
  for (int64_t i = 0; i < rows; ++i) {
    MergeRow(dim, o + i * stride, weights.running[i], block + i * block_stride,
             weights.block[i]);
  }
}

void Merge(const MergeShape& shape, float* o, float* lse, const auto* block_o,
           const float* block_lse) {
  if (shape.dim == 0) return;
  Weights weights;
  for (int64_t head = 0; head < shape.heads; ++head) {
    for (int64_t row = 0; row < shape.rows; row += kRowsAtOnce) {
      const int64_t rows = std::min(kRowsAtOnce, shape.rows - row);
      MergeLse(
          rows, lse + row * shape.lse.row + head * shape.lse.head,
          shape.lse.row,
          block_lse + row * shape.block_lse.row + head * shape.block_lse.head,
          shape.block_lse.row, weights);
      MergeRows(rows, shape.dim, o + row * shape.o.row + head * shape.o.head,
                shape.o.row,
                block_o + row * shape.block_o.row + head * shape.block_o.head,
                shape.block_o.row, weights);
    }
  }
}

}  // namespace

void MergeAttention(const MergeShape& shape, float* o, float* lse,
                    const float* block_o, const float* block_lse) {
  Merge(shape, o, lse, block_o, block_lse);
}

void MergeAttention(const MergeShape& shape, float* o, float* lse,
                    const BFloat16* block_o, const float* block_lse) {
  Merge(shape, o, lse, block_o, block_lse);
}

}  // namespace sluice::ops
