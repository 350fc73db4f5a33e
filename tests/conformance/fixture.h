// Fixture of the conformance suite, which runs each test on both drivers.
#pragma once

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/driver.h"
#include "tests/conformance/mapped.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::device {

// `name` is "sim", which opens the node in `directory`, or "cuda", which
// ignores `directory`.
absl::StatusOr<std::unique_ptr<Driver>> OpenDriver(
    const std::string& name, const std::string& directory);

class Conformance : public ::testing::TestWithParam<std::string> {
 protected:
  // Opens the driver. Skips the test if cuda cannot be opened.
  void SetUp() override;

  // Returns two granules of the placement, a size that every driver accepts.
  Bytes Size(Placement where) { return *driver_->Granularity(where) * 2; }

  const testing::TempDir directory_;
  std::unique_ptr<Driver> driver_;
};

inline constexpr DeviceIndex kGpu(0);
inline constexpr Placement kOnGpu{Placement::Kind::kGpu, 0};
inline constexpr Placement kOnHost{Placement::Kind::kHost, 0};
inline constexpr auto kH2D = CopyDirection::kHostToDevice;
inline constexpr auto kD2H = CopyDirection::kDeviceToHost;

}  // namespace sluice::device
