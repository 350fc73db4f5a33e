// MergeAttention (merge.h) on the GPU. A warp computes one row of one head; its
// lanes hold four elements each, so loads of o are contiguous and wide. The
// kernel is memory-bound: it touches each element once.
#include "kernels/ops/merge.h"
#include "kernels/ops/vector_load.cuh"

namespace {

using namespace sluice::ops;

constexpr int kOfLane = 4;

template <typename T>
__device__ void Merge(const MergeShape& shape, float* o, float* lse,
                      const T* block_o, const float* block_lse) {
  const int64_t warps_in_block = blockDim.x / warpSize;
  const int64_t pair = blockIdx.x * warps_in_block + threadIdx.x / warpSize;
  if (pair >= shape.rows * shape.heads) return;
  const int lane = threadIdx.x % warpSize;
  const int64_t row = pair / shape.heads, head = pair % shape.heads;
  o += row * shape.o.row + head * shape.o.head;
  lse += row * shape.lse.row + head * shape.lse.head;
  block_o += row * shape.block_o.row + head * shape.block_o.head;
  block_lse += row * shape.block_lse.row + head * shape.block_lse.head;

  const float a = *lse, b = *block_lse;
  const float low = a < b ? a : b, high = a < b ? b : a;
  // The smaller weight divided by the larger; 0, not NaN, if `low` is -inf.
  const float ratio = low == -INFINITY ? 0.0f : expf(low - high);
  const float larger = 1.0f / (1.0f + ratio), smaller = ratio * larger;
  const float running = a == -INFINITY ? 0.0f : (a < b ? smaller : larger);
  const float weight = b == -INFINITY ? 0.0f : (a < b ? larger : smaller);
  for (int64_t at = lane * kOfLane; at < shape.dim; at += warpSize * kOfLane) {
    const int there =
        static_cast<int>(shape.dim - at < kOfLane ? shape.dim - at : kOfLane);
    // A side of weight 0 is not read: it may be uninitialised or NaN.
    float kept[kOfLane] = {}, added[kOfLane] = {};
    if (running != 0.0f) Load(o + at, there, kept);
    if (weight != 0.0f) Load(block_o + at, there, added);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      kept[i] = running * kept[i] + weight * added[i];
    }
    Store(kept, there, o + at);
  }
  __syncwarp();  // every lane has read lse
  if (lane == 0) *lse = high + log1pf(ratio);
}

}  // namespace

extern "C" __global__ void sluice_merge_fp32(MergeShape shape, float* o,
                                             float* lse, const float* block_o,
                                             const float* block_lse) {
  Merge(shape, o, lse, block_o, block_lse);
}

// 16 blocks of 128 threads fill an SM.
extern "C" __global__ void __launch_bounds__(128, 16)
    sluice_merge_bf16(MergeShape shape, float* o, float* lse,
                      const BFloat16* block_o, const float* block_lse) {
  Merge(shape, o, lse, block_o, block_lse);
}
