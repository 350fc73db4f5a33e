#include "kernels/ops/merge_kernel.h"

#include <fmt/format.h>

#include <array>
#include <limits>

#include "proto/base/status.h"

#if SLUICE_ENABLE_CUDA
extern "C" const std::byte sluice_merge_fatbin[];
extern "C" const std::byte sluice_merge_fatbin_end[];
#endif

namespace sluice::ops {
namespace {

constexpr int64_t kWarpsInBlock = 4;
constexpr int64_t kWarp = 32;

}  // namespace

std::span<const std::byte> MergeFatbin() {
#if SLUICE_ENABLE_CUDA
  return {sluice_merge_fatbin, sluice_merge_fatbin_end};
#else
  return {};
#endif
}

absl::StatusOr<MergeKernel> MergeKernel::Load(device::Driver* driver) {
  if (MergeFatbin().empty()) {
    return absl::UnimplementedError(
        "this build has no device code: configure with "
        "-DSLUICE_ENABLE_CUDA=ON");
  }
  SLUICE_ASSIGN_OR_RETURN(const device::Module module,
                          driver->LoadModule(MergeFatbin()));
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
        fmt::format("merge of {} rows x {} heads: at most 2^33 together; merge "
                    "fewer rows at a time",
                    shape.rows, shape.heads));
  }
  device::LaunchShape launch;
  launch.grid[0] = static_cast<uint32_t>(blocks);
  launch.block[0] = static_cast<uint32_t>(kWarpsInBlock * kWarp);
  std::array<void*, 5> arguments = {&shape, &o, &lse, &block_o, &block_lse};
  return driver_->Launch(function, launch, arguments, stream);
}

}  // namespace sluice::ops
