// Tests on which device tensors are placed, views of memory, and the check of a
// tensor's device.
#include "client/torch/placement.h"

#include <ATen/ops/empty.h>

#include <cstddef>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Placement, SimUsesTheCpuAndCudaUsesTheGpu) {
  EXPECT_EQ(DeviceOf("sim", DeviceIndex(1)), at::Device(at::kCPU));
  EXPECT_EQ(DeviceOf("cuda", DeviceIndex(1)), at::Device(at::kCUDA, 1));
}

TEST(Placement, AViewIsTheMemoryItself) {
  alignas(64) std::byte memory[64] = {};
  const at::Tensor view = ViewOf(memory, {2, 3}, at::kFloat, at::kCPU);
  view.fill_(1);
  EXPECT_EQ(view.data_ptr(), memory);
  EXPECT_EQ(view.device(), at::Device(at::kCPU));
  EXPECT_EQ(reinterpret_cast<float*>(memory)[5], 1);
  EXPECT_EQ(ViewOf(nullptr, {0, 3}, at::kFloat, at::kCPU).numel(), 0);
}

TEST(Placement, ATensorElsewhereIsRefusedWithBothDevices) {
  const at::Tensor tokens = at::empty({3}, On(at::kMeta, at::kLong));
  EXPECT_TRUE(CheckOn("tokens", tokens, at::kMeta).ok());
  const absl::Status status = CheckOn("tokens", tokens, at::kCPU);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("tokens must be on cpu"), HasSubstr("on meta")));
}

}  // namespace
}  // namespace sluice::runtime
