// The functions of token_math.h on the GPU, memory-bound: a thread reads 16
// bytes of a tensor at a time, and norm kernels hold their row in registers.
#include "kernels/ops/token_math.h"
#include "kernels/ops/vector_load.cuh"

namespace {

using namespace sluice::ops;

// --- sums over a block -------------------------------------------------------
struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Greater {
  __device__ float operator()(float a, float b) const { return a > b ? a : b; }
};

template <typename Both>
__device__ float OfWarp(float value, Both both) {
  for (int mask = 16; mask > 0; mask /= 2) {
    value = both(value, __shfl_xor_sync(0xffffffffu, value, mask));
  }
  return value;
}

// Combines the values of all threads of the block and returns the result to
// each. The block is whole warps, at most 32 of them.
template <typename Both>
__device__ float OfBlock(float value, Both both) {
  __shared__ float of_warp[32];
  const int warp = threadIdx.x / warpSize, warps = blockDim.x / warpSize;
  value = OfWarp(value, both);
  __syncthreads();  // all threads have read the previous of_warp
  if (threadIdx.x % warpSize == 0) of_warp[warp] = value;
  __syncthreads();
  float all = of_warp[0];
  for (int i = 1; i < warps; ++i) all = both(all, of_warp[i]);
  return all;
}

// --- RMSNorm -----------------------------------------------------------------
// Returns where piece i of a row begins for this thread.
template <typename T>
__device__ int Begin(int i) {
  return (i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) *
         kVector<T>;
}

__device__ float InverseRms(const RmsNormShape& shape, float squares) {
  return rsqrtf(squares / static_cast<float>(shape.width) + shape.epsilon);
}

// Computes one row per block.
template <typename T>
__device__ void Norm(const RmsNormShape& shape, const RmsNormTensors<T>& t) {
  constexpr int kCount = kVector<T>;
  const int width = static_cast<int>(shape.width);
  const T* const x = t.x + blockIdx.x * shape.width;
  T* const y = t.y + blockIdx.x * shape.width;
  Piece<T, kCount> held[kHeldPieces];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kHeldPieces; ++i) {
    const int at = Begin<T>(i);
    held[i] = LoadPiece<kCount>(x + at, width - at);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      squares += At(held[i], k) * At(held[i], k);
    }
  }
  const float scale = InverseRms(shape, OfBlock(squares, Add()));
#pragma unroll
  for (int i = 0; i < kHeldPieces; ++i) {
    const int at = Begin<T>(i);
    float weight[kCount];
    Load(t.weight + at, width - at, weight);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      weight[k] *= At(held[i], k) * scale;
    }
    Store(weight, width - at, y + at);
  }
}

// Computes one part of the rows (rows_in_part) per block.
template <typename T>
__device__ void NormBackward(const RmsNormShape& shape,
                             const RmsNormGradients<T>& t) {
  constexpr int kCount = kVector<T>;
  const int width = static_cast<int>(shape.width);
  const int64_t first = blockIdx.x * shape.rows_in_part;
  const int64_t next = first + shape.rows_in_part;
  const int64_t end = next < shape.rows ? next : shape.rows;
  float sums[kHeldPieces][kCount] = {};
  for (int64_t row = first; row < end; ++row) {
    const int64_t begin = row * shape.width;
    Piece<T, kCount> x[kHeldPieces];
    float dy[kHeldPieces][kCount];
    float squares = 0, dots = 0;
#pragma unroll
    for (int i = 0; i < kHeldPieces; ++i) {
      const int at = Begin<T>(i), there = width - at;
      x[i] = LoadPiece<kCount>(t.x + begin + at, there);
      Load(t.dy[0] + begin + at, there, dy[i]);
#pragma unroll
      for (int more = 1; more < kMostGradients; ++more) {
        if (t.dy[more] == nullptr) continue;
        const auto added = LoadPiece<kCount>(t.dy[more] + begin + at, there);
#pragma unroll
        for (int k = 0; k < kCount; ++k) dy[i][k] += At(added, k);
      }
      const auto weight = LoadPiece<kCount>(t.weight + at, there);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const float value = At(x[i], k);
        squares += value * value;
        dots += value * dy[i][k] * At(weight, k);
      }
    }
    const float scale = InverseRms(shape, OfBlock(squares, Add()));
    const float mean =
        OfBlock(dots, Add()) * scale / static_cast<float>(shape.width);
#pragma unroll
    for (int i = 0; i < kHeldPieces; ++i) {
      const int at = Begin<T>(i), there = width - at;
      const auto weight = LoadPiece<kCount>(t.weight + at, there);
      float dx[kCount] = {};
      if (t.residual != nullptr) Load(t.residual + begin + at, there, dx);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const float normed = At(x[i], k) * scale;
        sums[i][k] += dy[i][k] * normed;
        dx[k] += (dy[i][k] * At(weight, k) - normed * mean) * scale;
      }
      Store(dx, there, t.dx + begin + at);
    }
  }
  float* const part = t.weight_gradient + blockIdx.x * shape.width;
#pragma unroll
  for (int i = 0; i < kHeldPieces; ++i) {
    const int at = Begin<T>(i);
    Store(sums[i], width - at, part + at);
  }
}

__device__ int64_t ThreadOfGrid() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
// Returns how many elements a load at `at` may read, at most 8.
__device__ int There(int64_t n, int64_t at) {
  return n - at < kVector<BFloat16> ? static_cast<int>(n - at)
                                    : kVector<BFloat16>;
}

// --- RoPE: a thread rotates a few pairs of a head ----------------------------
template <typename In, typename Out>
__device__ void Turn(const RopeShape& shape, const RopeTensors<In, Out>& t) {
  constexpr int kPairs = kVector<Out>;
  const int64_t half = shape.dim / 2, pieces = (half + kPairs - 1) / kPairs;
  const int64_t thread = ThreadOfGrid(), head = thread / pieces;
  if (head >= shape.rows * shape.heads) return;
  const int64_t at = thread % pieces * kPairs;
  const int there = There(half, at);
  const int64_t table = head / shape.heads * half + at;
  const int64_t first = head * shape.dim + at, second = first + half;
  float a[kPairs], b[kPairs], cos[kPairs], sin[kPairs];
  Load(t.x + first, there, a);
  Load(t.x + second, there, b);
  Load(t.cos + table, there, cos);
  Load(t.sin + table, there, sin);
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    const float by = shape.inverse ? -sin[k] : sin[k], x = a[k], y = b[k];
    a[k] = x * cos[k] - y * by;
    b[k] = y * cos[k] + x * by;
  }
  Store(a, there, t.y + first);
  Store(b, there, t.y + second);
}

// --- SwiGLU ------------------------------------------------------------------
__device__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <typename T>
__device__ void Gate(const SwigluShape& shape, const SwigluTensors<T>& t) {
  const int64_t n = shape.elements;
  const int64_t at = ThreadOfGrid() * kVector<T>;
  if (at >= n) return;
  const int there = There(n, at);
  float gate[kVector<T>], up[kVector<T>];
  Load(t.gate + at, there, gate);
  Load(t.up + at, there, up);
#pragma unroll
  for (int k = 0; k < kVector<T>; ++k) gate[k] *= Sigmoid(gate[k]) * up[k];
  Store(gate, there, t.y + at);
}

template <typename T>
__device__ void GateBackward(const SwigluShape& shape,
                             const SwigluGradients<T>& t) {
  const int64_t n = shape.elements;
  const int64_t at = ThreadOfGrid() * kVector<T>;
  if (at >= n) return;
  const int there = There(n, at);
  float dy[kVector<T>], gate[kVector<T>], up[kVector<T>];
  Load(t.dy + at, there, dy);
  Load(t.gate + at, there, gate);
  Load(t.up + at, there, up);
#pragma unroll
  for (int k = 0; k < kVector<T>; ++k) {
    const float g = gate[k], s = Sigmoid(g);
    gate[k] = dy[k] * up[k] * s * (1.0f + g * (1.0f - s));
    up[k] = dy[k] * g * s;
  }
  Store(gate, there, t.d_gate + at);
  Store(up, there, t.d_up + at);
}

// --- softmax: a block per row ------------------------------------------------
template <typename T>
__device__ void Softmax(const SoftmaxShape& shape, const SoftmaxTensors<T>& t) {
  constexpr int kCount = kVector<T>;
  const int64_t row = blockIdx.x, label = t.labels[row];
  T* const logits = t.logits + row * shape.width;
  const bool counts = label != shape.ignored;
  const float picked = counts ? ToFloat(logits[label]) : 0;
  const int64_t step = static_cast<int64_t>(blockDim.x) * kCount;
  // The greatest logit that this thread has read, and the sum of exponentials
  // relative to it.
  float greatest = -INFINITY, sum = 0;
  float x[kCount];
  for (int64_t at = threadIdx.x * kCount; counts && at < shape.width;
       at += step) {
    const int there = There(shape.width, at);
    Load(logits + at, there, x);
    float most = greatest;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (k < there && x[k] > most) most = x[k];
    }
    sum *= greatest == most ? 1.0f : expf(greatest - most);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (k < there) sum += expf(x[k] - most);
    }
    greatest = most;
  }
  const float of_row = OfBlock(greatest, Greater());
  const float all =
      OfBlock(greatest == of_row ? sum : sum * expf(greatest - of_row), Add());
  const float factor = shape.scale / all;
  for (int64_t at = threadIdx.x * kCount; at < shape.width; at += step) {
    const int there = There(shape.width, at);
    if (counts) Load(logits + at, there, x);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float p = counts ? expf(x[k] - of_row) * factor : 0.0f;
      x[k] = counts && at + k == label ? p - shape.scale : p;
    }
    Store(x, there, logits + at);
  }
  if (threadIdx.x == 0) {
    t.loss[row] = counts ? logf(all) - (picked - of_row) : 0.0f;
  }
}

}  // namespace

#define SLUICE_KERNEL(name, Shape, Tensors, Body)                    \
  extern "C" __global__ void sluice_##name(Shape shape, Tensors t) { \
    Body(shape, t);                                                  \
  }
// Defines a kernel with at most kMostNormThreads threads per block.
#define SLUICE_NORM_KERNEL(name, Tensors, Body)                  \
  extern "C" __global__ void __launch_bounds__(kMostNormThreads) \
      sluice_##name(RmsNormShape shape, Tensors t) {             \
    Body(shape, t);                                              \
  }

SLUICE_NORM_KERNEL(rms_norm_fp32, RmsNormTensors<float>, Norm)
SLUICE_NORM_KERNEL(rms_norm_bf16, RmsNormTensors<BFloat16>, Norm)
SLUICE_NORM_KERNEL(rms_norm_backward_fp32, RmsNormGradients<float>,
                   NormBackward)
SLUICE_NORM_KERNEL(rms_norm_backward_bf16, RmsNormGradients<BFloat16>,
                   NormBackward)
using TurnFp32 = RopeTensors<float, float>;
using TurnBf16 = RopeTensors<BFloat16, BFloat16>;
using TurnAndRound = RopeTensors<float, BFloat16>;
SLUICE_KERNEL(rope_fp32, RopeShape, TurnFp32, Turn)
SLUICE_KERNEL(rope_bf16, RopeShape, TurnBf16, Turn)
SLUICE_KERNEL(rope_fp32_to_bf16, RopeShape, TurnAndRound, Turn)
SLUICE_KERNEL(swiglu_fp32, SwigluShape, SwigluTensors<float>, Gate)
SLUICE_KERNEL(swiglu_bf16, SwigluShape, SwigluTensors<BFloat16>, Gate)
SLUICE_KERNEL(swiglu_backward_fp32, SwigluShape, SwigluGradients<float>,
              GateBackward)
SLUICE_KERNEL(swiglu_backward_bf16, SwigluShape, SwigluGradients<BFloat16>,
              GateBackward)
SLUICE_KERNEL(softmax_gradient_fp32, SoftmaxShape, SoftmaxTensors<float>,
              Softmax)
SLUICE_KERNEL(softmax_gradient_bf16, SoftmaxShape, SoftmaxTensors<BFloat16>,
              Softmax)
