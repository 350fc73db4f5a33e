// A fixture that opens the cuda table on a fake driver of two GPUs.
#pragma once

#include <memory>

#include "gtest/gtest.h"
#include "kernels/device/driver.h"
#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/nothing_left.h"
#include "tests/support/status_matchers.h"

namespace sluice::device {

class OpenedTable : public ::testing::Test {
 protected:
  void SetUp() override { fake_cuda::fake_cuda_set(kNode); }
  void TearDown() override {
    driver_.reset();
    fake_cuda::ExpectNothingLeft();
  }
  // Opens the table with `settings` (tests/fake_cuda/settings.h).
  void Open(const char* settings = "gpus=2") {
    fake_cuda::fake_cuda_set(settings);
    auto driver = OpenCudaDriver();
    ASSERT_THAT(driver, testing::IsOk());
    driver_ = *std::move(driver);
  }

  static constexpr const char* kNode =
      "gpus=2,host_numa=1,version=13000,jitter_us=0,numa=0,rdma=0,"
      "capability=80,gpu_granularity_kib=2048,host_granularity_kib=4096";
  std::unique_ptr<Driver> driver_;
};

}  // namespace sluice::device
