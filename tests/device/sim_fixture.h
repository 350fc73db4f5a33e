// Fixture: a simulated node in a temporary directory, and a driver on it.
#pragma once

#include <memory>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/driver.h"
#include "kernels/device/sim/sim.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::device {

// Returns a node's configuration: two GPUs share one link, a third has its own,
// and no link has a speed limit.
inline SimConfig SmallNode() {
  return {.gpus = {{MiB(8), "shared", NumaIndex(0)},
                   {MiB(8), "shared", NumaIndex(0)},
                   {MiB(4), "own", NumaIndex(1)}},
          .links = {{"shared", 0, 0}, {"own", 0, 0}},
          .numa_nodes = 2,
          .host_memory = MiB(16)};
}

class SimTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_THAT(CreateSimNode(directory_.path(), SmallNode()), testing::IsOk());
    auto node = SimNode::Open(directory_.path());
    ASSERT_THAT(node, testing::IsOk());
    node_ = *std::move(node);
    driver_ = Open();
  }

  std::unique_ptr<Driver> Open() const {
    auto driver = OpenSimDriver(directory_.path());
    EXPECT_THAT(driver, testing::IsOk());
    return driver.ok() ? *std::move(driver) : nullptr;
  }

  Bytes Used(Placement where) const { return node_->Usage(where)->used; }

  const testing::TempDir directory_;
  std::unique_ptr<SimNode> node_;
  std::unique_ptr<Driver> driver_;
};

inline constexpr Placement kGpu0{Placement::Kind::kGpu, 0};
inline constexpr Placement kHost0{Placement::Kind::kHost, 0};
inline constexpr Placement kHost1{Placement::Kind::kHost, 1};

}  // namespace sluice::device
