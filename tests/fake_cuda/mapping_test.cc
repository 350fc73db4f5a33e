// Tests that unmapping a lease on the fake driver pins no byte again, which
// would cost time on a real driver, and that a failed mapping leaves nothing.
#include "client/session/mapping.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/device/driver.h"
#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/nothing_left.h"
#include "tests/support/status_matchers.h"

namespace sluice::client {
namespace {

using ::sluice::testing::IsOk;

constexpr device::Placement kOnHost{device::Placement::Kind::kHost, 0};
constexpr int kExtents = 5;

// The parameter is the setting for the kind of host memory.
class MappingOnCuda : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    fake_cuda::fake_cuda_set(GetParam());
    auto driver = device::OpenCudaDriver();
    ASSERT_THAT(driver, IsOk());
    driver_ = *std::move(driver);
  }
  void TearDown() override {
    driver_.reset();
    fake_cuda::ExpectNothingLeft();
  }

  absl::StatusOr<std::vector<Extent>> Extents() {
    SLUICE_ASSIGN_OR_RETURN(const Bytes size, driver_->Granularity(kOnHost));
    std::vector<Extent> extents;
    for (int i = 0; i < kExtents; ++i) {
      SLUICE_ASSIGN_OR_RETURN(const device::Memory memory,
                              driver_->Create(kOnHost, size));
      SLUICE_ASSIGN_OR_RETURN(UniqueFd fd, driver_->Export(memory));
      extents.push_back({std::move(fd), size, kOnHost});
      SLUICE_RETURN_IF_ERROR(driver_->Release(memory));
    }
    return extents;
  }
  static long Pinnings() {
    return fake_cuda::fake_cuda_calls("cuMemHostRegister_v2");
  }

  std::unique_ptr<device::Driver> driver_;
};

TEST_P(MappingOnCuda, UnmappingPinsNothingAgain) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto extents, Extents());
  SLUICE_ASSERT_OK_AND_ASSIGN(
      auto mapping, Mapping::Make(driver_.get(), DeviceIndex(0), extents));
  const long pinnings = Pinnings();
  mapping.reset();
  EXPECT_EQ(Pinnings(), pinnings);
}

// The size of the last extent is wrong, so Make fails when the other extents
// are mapped but not yet pinned.
TEST_P(MappingOnCuda, AFailedMappingLeavesNothing) {
  SLUICE_ASSERT_OK_AND_ASSIGN(auto extents, Extents());
  extents.back().size = extents.back().size * 2;
  EXPECT_FALSE(Mapping::Make(driver_.get(), DeviceIndex(0), extents).ok());
}

INSTANTIATE_TEST_SUITE_P(HostMemory, MappingOnCuda,
                         ::testing::Values("host_numa=0", "host_numa=1"),
                         [](const auto& info) {
                           return info.param == std::string("host_numa=0")
                                      ? "Memfd"
                                      : "HostNuma";
                         });

}  // namespace
}  // namespace sluice::client
