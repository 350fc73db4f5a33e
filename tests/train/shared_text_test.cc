// Tests what ranks learn of each other's errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <vector>

#include "client/train/launch/outcome.h"
#include "client/train/rank.h"
#include "proto/base/shortage.h"
#include "tests/support/status_matchers.h"

namespace sluice::train {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;

// Rank 1 of four. A test sets what the other ranks contribute.
class Others : public runtime::Collectives {
 public:
  std::vector<int> failed;
  std::string text;  // the root's; empty if this rank is the root
  std::optional<int> root;

  int rank() const override { return 1; }
  int world_size() const override { return 4; }
  absl::Status AllToAll(const at::Tensor&, const std::vector<int64_t>&,
                        const at::Tensor&,
                        const std::vector<int64_t>&) override {
    return absl::UnimplementedError("");
  }
  absl::Status SumAll(at::Tensor& tensor) override {
    for (const int other : failed) tensor[other] += 1;
    return absl::OkStatus();
  }
  absl::Status SumTo(at::Tensor&, int) override { return Barrier(); }
  absl::Status Broadcast(at::Tensor& tensor, int from) override {
    root = from;
    if (!text.empty()) {
      std::strcpy(static_cast<char*>(tensor.data_ptr()), text.c_str());
    }
    return absl::OkStatus();
  }
  absl::Status Barrier() override { return absl::UnimplementedError(""); }
  absl::Status Check() override { return absl::OkStatus(); }
  void Abort(const std::string&) override {}
};

TEST(ShareFault, TheFirstFailedRanksErrorIsSharedWithItsCodeAndShortage) {
  Others others;
  absl::Status fault;
  ASSERT_THAT(ShareFault(&others, fault), IsOk());
  EXPECT_EQ(fault, absl::OkStatus());
  EXPECT_EQ(others.root, std::nullopt);
  // This rank's error comes before another rank's.
  const absl::Status own = ShortOf(Shortage::kHostMemory, "two words");
  others.failed = {2};
  fault = own;
  ASSERT_THAT(ShareFault(&others, fault), IsOk());
  EXPECT_EQ(others.root, 1);
  EXPECT_THAT(fault, StatusIs(absl::StatusCode::kResourceExhausted,
                              "rank 1: two words"));
  EXPECT_EQ(ShortageOf(fault), Shortage::kHostMemory);
  // Another rank's error comes before this rank's.
  others.failed = {0, 2};
  others.text = "7 disk it is full";
  fault = own;
  ASSERT_THAT(ShareFault(&others, fault), IsOk());
  EXPECT_EQ(others.root, 0);
  EXPECT_THAT(fault, StatusIs(absl::StatusCode::kPermissionDenied,
                              "rank 0: it is full"));
  EXPECT_EQ(ShortageOf(fault), Shortage::kDisk);
  others.text = "3 none no";
  fault = own;
  ASSERT_THAT(ShareFault(&others, fault), IsOk());
  EXPECT_EQ(ShortageOf(fault), Shortage::kNone);
  EXPECT_EQ(ExitCode(fault), kExitBadInput);
  others.text = "nonsense";
  fault = own;
  ASSERT_THAT(ShareFault(&others, fault), IsOk());
  EXPECT_THAT(fault, StatusIs(absl::StatusCode::kInternal));
}

TEST(ShareText, ALongTextIsTruncated) {
  Others others;
  const std::string text(2000, 'x');
  SLUICE_ASSERT_OK_AND_ASSIGN(const std::string all,
                              ShareText(&others, text, 1));
  EXPECT_EQ(all, text.substr(0, 999));
  SLUICE_ASSERT_OK_AND_ASSIGN(const std::string alone,
                              ShareText(nullptr, text, 0));
  EXPECT_EQ(alone, text);
}

}  // namespace
}  // namespace sluice::train
