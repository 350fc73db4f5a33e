#include "kernels/device/cuda/library.h"
#include "kernels/device/driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::device::cuda {
namespace {

using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;

TEST(CudaLibrary, AMissingDriverIsNamedWithWhatToDo) {
  EXPECT_THAT(LoadedLibrary::Load("libcuda-that-is-not-there.so.1"),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("install the NVIDIA driver, or use the "
                                 "simulated node")));
}

// libm, which has no CUDA function, stands for a driver older than 12.2.
TEST(CudaLibrary, ADriverWithoutAFunctionIsTooOld) {
  EXPECT_THAT(LoadedLibrary::Load("libm.so.6"),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("libm.so.6 has no cuInit: the NVIDIA driver "
                                 "is too old, 12.2 or newer")));
}

TEST(CudaLibrary, CudaErrorsBecomeStatusCodes) {
  EXPECT_EQ(CodeOf(kSuccess), absl::StatusCode::kOk);
  EXPECT_EQ(CodeOf(kInvalidValue), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(kOutOfMemory), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CodeOf(700), absl::StatusCode::kUnavailable);
  EXPECT_EQ(CodeOf(801), absl::StatusCode::kUnimplemented);
  for (const Result newer_than_the_driver : {200, 218, 222}) {
    EXPECT_EQ(CodeOf(newer_than_the_driver), absl::StatusCode::kUnimplemented);
  }
  EXPECT_EQ(CodeOf(999), absl::StatusCode::kInternal);
}

// On a machine with a GPU the conformance suite checks more.
TEST(OpenCudaDriver, OpensOrSaysWhyNot) {
  const auto driver = OpenCudaDriver();
  if (driver.ok()) {
    EXPECT_EQ((*driver)->name(), "cuda");
  } else {
    EXPECT_THAT(driver, StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_FALSE(driver.status().message().empty());
  }
}

}  // namespace
}  // namespace sluice::device::cuda
