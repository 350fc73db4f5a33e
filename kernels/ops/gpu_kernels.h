// Launches the functions of merge.h and token_math.h on a GPU through the
// device seam, in stream order. Shapes and tensors are those of the headers,
// with device pointers. A call without elements does nothing.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/driver.h"
#include "kernels/ops/merge.h"
#include "kernels/ops/token_math.h"
#include "proto/base/status.h"

namespace sluice::ops {

// Returns the compiled merge kernels; empty in a build without CUDA.
std::span<const std::byte> MergeFatbin();

class MergeKernel {
 public:
  // `driver` outlives the kernel. Unimplemented: the driver (sim) or the build
  // (without CUDA) has no kernels. Use MergeAttention then.
  static absl::StatusOr<MergeKernel> Load(device::Driver* driver);

  absl::Status Launch(const MergeShape& shape, float* o, float* lse,
                      const float* block_o, const float* block_lse,
                      device::Stream stream) const;
  absl::Status Launch(const MergeShape& shape, float* o, float* lse,
                      const BFloat16* block_o, const float* block_lse,
                      device::Stream stream) const;

 private:
  MergeKernel(device::Driver* driver, device::Function fp32,
              device::Function bf16)
      : driver_(driver), fp32_(fp32), bf16_(bf16) {}

  absl::Status LaunchFunction(device::Function function, MergeShape shape,
                              float* o, float* lse, const void* block_o,
                              const float* block_lse,
                              device::Stream stream) const;

  device::Driver* driver_;
  device::Function fp32_, bf16_;
};

// Thread safety: thread-safe, as the driver is.
class TokenKernels {
 public:
  // Errors and lifetimes are those of MergeKernel::Load.
  static absl::StatusOr<TokenKernels> Load(device::Driver* driver);

  // InvalidArgument: a norm's rows have more than 32 KiB.
  template <typename T>
  absl::Status Launch(const RmsNormShape& shape, const RmsNormTensors<T>& t,
                      device::Stream stream) const {
    return LaunchNorm<T>(kRmsNorm, shape.rows, shape, t, stream);
  }
  template <typename T>
  absl::Status Launch(const RmsNormShape& shape, const RmsNormGradients<T>& t,
                      device::Stream stream) const {
    return LaunchNorm<T>(kRmsNormBackward, shape.parts(), shape, t, stream);
  }
  template <typename In, typename Out>
  absl::Status Launch(const RopeShape& shape, const RopeTensors<In, Out>& t,
                      device::Stream stream) const {
    const Kernel kernel = std::is_same_v<In, Out> ? kRope : kRopeRounding;
    const int64_t pieces = PiecesOf(shape.dim / 2, sizeof(Out));
    return Launch(FunctionOf(kernel, sizeof(Out)),
                  ForThreads(shape.rows * shape.heads * pieces), shape, t,
                  stream);
  }
  template <typename T>
  absl::Status Launch(const SwigluShape& shape, const SwigluTensors<T>& t,
                      device::Stream stream) const {
    return Launch(FunctionOf(kSwiglu, sizeof(T)),
                  ForThreads(PiecesOf(shape.elements, sizeof(T))), shape, t,
                  stream);
  }
  template <typename T>
  absl::Status Launch(const SwigluShape& shape, const SwigluGradients<T>& t,
                      device::Stream stream) const {
    return Launch(FunctionOf(kSwigluBackward, sizeof(T)),
                  ForThreads(PiecesOf(shape.elements, sizeof(T))), shape, t,
                  stream);
  }
  template <typename T>
  absl::Status Launch(const SoftmaxShape& shape, const SoftmaxTensors<T>& t,
                      device::Stream stream) const {
    return Launch(FunctionOf(kSoftmaxGradient, sizeof(T)),
                  {shape.rows, kSoftmaxThreads}, shape, t, stream);
  }

 private:
  enum Kernel {
    kRmsNorm,
    kRmsNormBackward,
    kRope,
    kSwiglu,
    kSwigluBackward,
    kSoftmaxGradient,
    kKernels,
    kRopeRounding  // rounds fp32 input to bf16
  };
  struct Size {
    int64_t blocks;
    int64_t threads;  // per block
  };
  // Threads of a softmax block: many, because a row of logits is long.
  static constexpr int64_t kSoftmaxThreads = 512;

  explicit TokenKernels(device::Driver* driver) : driver_(driver) {}

  device::Function FunctionOf(Kernel kernel, size_t element) const {
    if (kernel == kRopeRounding) return rope_rounding_;
    return (element == sizeof(float) ? fp32_ : bf16_)[kernel];
  }
  // Returns how many pieces of 16 bytes `n` elements take.
  static int64_t PiecesOf(int64_t n, size_t element) {
    const int64_t in_piece = 16 / static_cast<int64_t>(element);
    return (n + in_piece - 1) / in_piece;
  }
  static Size ForThreads(int64_t threads);
  // Returns blocks with as few whole warps as can hold a row in registers.
  static absl::StatusOr<Size> ForRows(int64_t blocks, int64_t pieces);

  template <typename T>
  absl::Status LaunchNorm(Kernel kernel, int64_t blocks,
                          const RmsNormShape& shape, const auto& t,
                          device::Stream stream) const {
    SLUICE_ASSIGN_OR_RETURN(const Size size,
                            ForRows(blocks, PiecesOf(shape.width, sizeof(T))));
    return Launch(FunctionOf(kernel, sizeof(T)), size, shape, t, stream);
  }
  absl::Status Launch(device::Function function, const Size& size, auto shape,
                      auto tensors, device::Stream stream) const {
    std::array<void*, 2> arguments = {&shape, &tensors};
    return LaunchWith(function, size, arguments, stream);
  }
  absl::Status LaunchWith(device::Function function, const Size& size,
                          std::span<void*> arguments,
                          device::Stream stream) const;

  device::Driver* driver_;
  std::array<device::Function, kKernels> fp32_, bf16_;
  device::Function rope_rounding_;
};

}  // namespace sluice::ops
