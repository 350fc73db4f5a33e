// The part of CUDA C++ that our .cu files use, for the CPU's compiler. A form
// includes this header and then the unchanged .cu file.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/fake_cuda/kernels/block.h"

#define __device__
#define __global__
#define __launch_bounds__(...)
// Each thread of the CPU runs one block at a time.
#define __shared__ static thread_local
#define threadIdx (::sluice::fake_cuda::Here().thread)
#define blockIdx (::sluice::fake_cuda::Here().block)
#define blockDim (::sluice::fake_cuda::Here().threads)
#define gridDim (::sluice::fake_cuda::Here().blocks)

inline constexpr int warpSize = ::sluice::fake_cuda::kWarp;

inline void __syncthreads() { ::sluice::fake_cuda::SyncBlock(); }
// Supports only whole warps.
inline void __syncwarp() { ::sluice::fake_cuda::SyncWarp(); }

template <typename T>
T FakeShuffle(T value, unsigned from) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  std::memcpy(&::sluice::fake_cuda::Exchange(::sluice::fake_cuda::Lane()),
              &value, sizeof(T));
  ::sluice::fake_cuda::SyncWarp();
  T got;
  std::memcpy(&got, &::sluice::fake_cuda::Exchange(from), sizeof(T));
  ::sluice::fake_cuda::SyncWarp();
  return got;
}
template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return FakeShuffle(value, static_cast<unsigned>(lane) % warpSize);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return FakeShuffle(value,
                     ::sluice::fake_cuda::Lane() ^ static_cast<unsigned>(mask));
}
// The last `by` lanes of a warp keep their own values.
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned by) {
  const unsigned lane = ::sluice::fake_cuda::Lane();
  return FakeShuffle(value, lane + by < warpSize ? lane + by : lane);
}

inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }
