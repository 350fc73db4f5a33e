// Tests that a program started without NVIDIA's libraries, as this one is,
// reports what it lacks when it needs a GPU.
#include "client/torch/memory/torch_cuda.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(TorchCuda, AMissingTorchLibraryIsNamedWithARemedy) {
  const absl::Status status =
      LoadTorchCuda({.torch = "libno_such_torch.so"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("libno_such_torch.so"), HasSubstr("install")));
  EXPECT_EQ(LoadedTorchCuda(), nullptr);
}

TEST(TorchCuda, OurMissingModuleIsNamedToo) {
  const absl::Status status =
      LoadTorchCuda({.torch = "libc10.so", .module = "libno_such_module.so"})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("libno_such_module.so"), HasSubstr("../lib")));
  EXPECT_EQ(LoadedTorchCuda(), nullptr);
}

TEST(TorchCuda, ALibraryThatIsNotOurModuleIsRefused) {
  EXPECT_EQ(LoadTorchCuda({.torch = "libc10.so", .module = "libc10.so"})
                .status()
                .code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(LoadedTorchCuda(), nullptr);
}

}  // namespace
}  // namespace sluice::runtime
