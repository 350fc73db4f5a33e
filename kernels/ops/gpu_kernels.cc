#include "kernels/ops/gpu_kernels.h"

#include <fmt/format.h>

#include <limits>
#include <string>

#if SLUICE_ENABLE_CUDA
extern "C" const std::byte sluice_merge_fatbin[];
extern "C" const std::byte sluice_merge_fatbin_end[];
extern "C" const std::byte sluice_token_math_fatbin[];
extern "C" const std::byte sluice_token_math_fatbin_end[];
#endif

namespace sluice::ops {
namespace {

constexpr int64_t kWarp = 32;
constexpr int64_t kWarpsInBlock = 4;  // of the merge
constexpr int64_t kThreads = 256;  // for kernels that work with any block size
constexpr const char* kNames[] = {
    "rms_norm", "rms_norm_backward", "rope",
    "swiglu",   "swiglu_backward",   "softmax_gradient"};

std::span<const std::byte> TokenMathFatbin() {
#if SLUICE_ENABLE_CUDA
  return {sluice_token_math_fatbin, sluice_token_math_fatbin_end};
#else
  return {};
#endif
}

absl::StatusOr<device::Module> LoadFatbin(device::Driver* driver,
                                          std::span<const std::byte> fatbin) {
  if (!fatbin.empty()) return driver->LoadModule(fatbin);
  return absl::UnimplementedError(
      "this build has no device code: configure with "
      "-DSLUICE_ENABLE_CUDA=ON");
}

device::LaunchShape ShapeOf(int64_t blocks, int64_t threads) {
  device::LaunchShape shape;
  shape.grid[0] = static_cast<uint32_t>(blocks);
  shape.block[0] = static_cast<uint32_t>(threads);
  return shape;
}

}  // namespace

std::span<const std::byte> MergeFatbin() {
#if SLUICE_ENABLE_CUDA
  return {sluice_merge_fatbin, sluice_merge_fatbin_end};
#else
  return {};
#endif
}

absl::StatusOr<MergeKernel> MergeKernel::Load(device::Driver* driver) {
  SLUICE_ASSIGN_OR_RETURN(const device::Module module,
                          LoadFatbin(driver, MergeFatbin()));
  SLUICE_ASSIGN_OR_RETURN(const device::Function fp32,
                          driver->GetFunction(module, "sluice_merge_fp32"));
  SLUICE_ASSIGN_OR_RETURN(const device::Function bf16,
                          driver->GetFunction(module, "sluice_merge_bf16"));
  return MergeKernel(driver, fp32, bf16);
}

absl::Status MergeKernel::Launch(const MergeShape& shape, float* o, float* lse,
                                 const float* block_o, const float* block_lse,
                                 device::Stream stream) const {
  return LaunchFunction(fp32_, shape, o, lse, block_o, block_lse, stream);
}

absl::Status MergeKernel::Launch(const MergeShape& shape, float* o, float* lse,
                                 const BFloat16* block_o,
                                 const float* block_lse,
                                 device::Stream stream) const {
  return LaunchFunction(bf16_, shape, o, lse, block_o, block_lse, stream);
}

absl::Status MergeKernel::LaunchFunction(device::Function function,
                                         MergeShape shape, float* o, float* lse,
                                         const void* block_o,
                                         const float* block_lse,
                                         device::Stream stream) const {
  const int64_t pairs = shape.rows * shape.heads;
  if (pairs == 0 || shape.dim == 0) return absl::OkStatus();
  const int64_t blocks = (pairs + kWarpsInBlock - 1) / kWarpsInBlock;
  if (blocks > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        fmt::format("merge of {} rows x {} heads, whose product may be at most "
                    "2^33: merge fewer rows at a time",
                    shape.rows, shape.heads));
  }
  std::array<void*, 5> arguments = {&shape, &o, &lse, &block_o, &block_lse};
  return driver_->Launch(function, ShapeOf(blocks, kWarpsInBlock * kWarp),
                         arguments, stream);
}

absl::StatusOr<TokenKernels> TokenKernels::Load(device::Driver* driver) {
  SLUICE_ASSIGN_OR_RETURN(const device::Module module,
                          LoadFatbin(driver, TokenMathFatbin()));
  TokenKernels kernels(driver);
  const auto find = [&](const std::string& name) {
    return driver->GetFunction(module, ("sluice_" + name).c_str());
  };
  for (size_t i = 0; i < kKernels; ++i) {
    const std::string name = kNames[i];
    SLUICE_ASSIGN_OR_RETURN(kernels.fp32_[i], find(name + "_fp32"));
    SLUICE_ASSIGN_OR_RETURN(kernels.bf16_[i], find(name + "_bf16"));
  }
  SLUICE_ASSIGN_OR_RETURN(kernels.rope_rounding_, find("rope_fp32_to_bf16"));
  return kernels;
}

TokenKernels::Size TokenKernels::ForThreads(int64_t threads) {
  return {(threads + kThreads - 1) / kThreads, kThreads};
}

absl::StatusOr<TokenKernels::Size> TokenKernels::ForRows(int64_t blocks,
                                                         int64_t pieces) {
  const int64_t in_warp = kHeldPieces * kWarp;
  const int64_t threads = (pieces + in_warp - 1) / in_warp * kWarp;
  if (threads > kMostNormThreads) {
    return absl::InvalidArgumentError(
        fmt::format("RMSNorm of rows of {} bytes; at most {} fit", pieces * 16,
                    kMostNormThreads * kHeldPieces * 16));
  }
  return Size{threads == 0 ? 0 : blocks, threads};
}

absl::Status TokenKernels::LaunchWith(device::Function function,
                                      const Size& size,
                                      std::span<void*> arguments,
                                      device::Stream stream) const {
  if (size.blocks == 0) return absl::OkStatus();
  if (size.blocks > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        fmt::format("a kernel of {} blocks may have at most 2^31 - 1: compute "
                    "fewer rows at a time",
                    size.blocks));
  }
  return driver_->Launch(function, ShapeOf(size.blocks, size.threads),
                         arguments, stream);
}

}  // namespace sluice::ops
