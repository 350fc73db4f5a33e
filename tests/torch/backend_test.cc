// Tests the attention backend of a device, and that a device without a backend
// is refused by its name.
#include "client/torch/backend/backend.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include "client/torch/exceptions.h"
#include "client/torch/math/attention_blocks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::runtime {
namespace {

using ::testing::HasSubstr;

TEST(Backend, TheCpuHasABackendAndItsTensorsFindIt) {
  const auto found = FindBackend(at::kCPU);
  ASSERT_TRUE(found.ok());
  EXPECT_STREQ((*found)->traits().name, "cpu");
  EXPECT_EQ(&BackendOf(at::empty({1})), *found);
}

TEST(Backend, ADeviceWithoutAttentionIsRefusedByItsName) {
  for (const at::Device device :
       {at::Device(at::kCUDA, 1), at::Device(at::kMeta)}) {
    const absl::Status status = FindBackend(device).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr(device.str()));
  }
}

// ATen alone would return meta tensors, which have no values, and no error.
TEST(Backend, BlocksOnADeviceWithoutAttentionAreRefused) {
  const at::Tensor q = at::empty({4, 2, 8}, at::TensorOptions(at::kMeta));
  const at::Tensor lse = at::empty({2, 4}, at::TensorOptions(at::kMeta));
  const absl::Status status = CatchStatus("a block", [&] {
    AttendBlock(q, q, q, true, Sum::kBegin, {q, lse});
    return absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("attention on meta"));
}

// Merging two halves of the keys gives the attention over all of them.
TEST(Backend, MergeUndoesACutOfTheKeys) {
  const Backend& cpu = BackendOf(at::empty({1}));
  const at::Tensor q = at::randn({5, 2, 8}), k = at::randn({6, 2, 8});
  const at::Tensor v = at::randn({6, 2, 8});
  const AttentionResult whole = cpu.Attend(q, k, v, false);
  const AttentionResult merged =
      cpu.Attend(q, k.narrow(0, 0, 2), v.narrow(0, 0, 2), false);
  cpu.Merge(merged, cpu.Attend(q, k.narrow(0, 2, 4), v.narrow(0, 2, 4), false));
  EXPECT_LT((merged.output - whole.output).abs().max().item<double>(), 1e-6);
  EXPECT_LT((merged.lse - whole.lse).abs().max().item<double>(), 1e-6);
}

}  // namespace
}  // namespace sluice::runtime
