#include "kernels/ops/token_kernels.h"

#include <fmt/format.h>

#include <limits>
#include <string>

#include "kernels/ops/token_launch.h"
#include "proto/base/status.h"

#if SLUICE_ENABLE_CUDA
extern "C" const std::byte sluice_token_math_fatbin[];
extern "C" const std::byte sluice_token_math_fatbin_end[];
#endif

namespace sluice::ops {
namespace {

constexpr int64_t kWarpThreads = 32;
constexpr int64_t kThreads = 256;  // for kernels that work with any block size

constexpr const char* kNames[] = {
    "rms_norm", "rms_norm_backward", "rope",
    "swiglu",   "swiglu_backward",   "softmax_gradient"};

}  // namespace

std::span<const std::byte> TokenMathFatbin() {
#if SLUICE_ENABLE_CUDA
  return {sluice_token_math_fatbin, sluice_token_math_fatbin_end};
#else
  return {};
#endif
}

absl::StatusOr<TokenKernels> TokenKernels::Load(device::Driver* driver) {
  if (TokenMathFatbin().empty()) {
    return absl::UnimplementedError(
        "this build has no device code: configure with "
        "-DSLUICE_ENABLE_CUDA=ON");
  }
  SLUICE_ASSIGN_OR_RETURN(const device::Module module,
                          driver->LoadModule(TokenMathFatbin()));
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
  const int64_t in_warp = kHeldPieces * kWarpThreads;
  const int64_t threads = (pieces + in_warp - 1) / in_warp * kWarpThreads;
  if (threads > kMostNormThreads) {
    return absl::InvalidArgumentError(
        fmt::format("RMSNorm of rows of {} bytes, of at most {}", pieces * 16,
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
        fmt::format("a kernel of {} blocks, of at most 2^31 - 1: compute fewer "
                    "rows at a time",
                    size.blocks));
  }
  device::LaunchShape launch;
  launch.grid[0] = static_cast<uint32_t>(size.blocks);
  launch.block[0] = static_cast<uint32_t>(size.threads);
  return driver_->Launch(function, launch, arguments, stream);
}

}  // namespace sluice::ops
