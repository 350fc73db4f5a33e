// Fixture: a copy engine on a simulated node, with GPU and host memory to copy
// between.
#pragma once

#include <memory>
#include <vector>

#include "client/copy/copy_engine.h"
#include "gtest/gtest.h"
#include "kernels/device/driver.h"
#include "kernels/device/sim/sim.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::client {

using device::CopyDirection;
using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;

class EngineTest : public ::testing::Test {
 protected:
  // `speed` is in bytes per second, for each direction; 0 means no limit.
  void Start(double speed = 0, CopyEngine::Options options = {}) {
    ASSERT_THAT(
        device::CreateSimNode(directory_.path(),
                              {.gpus = {{MiB(8), "pcie0", NumaIndex(0)}},
                               .links = {{"pcie0", speed, speed}},
                               .host_memory = MiB(32)}),
        IsOk());
    SLUICE_ASSERT_OK_AND_ASSIGN(node_,
                                device::SimNode::Open(directory_.path()));
    SLUICE_ASSERT_OK_AND_ASSIGN(driver_,
                                device::OpenSimDriver(directory_.path()));
    gpu_ = Map(device::Placement::Gpu(DeviceIndex(0)), MiB(8));
    host_ = Map(device::Placement::Host(NumaIndex(0)), MiB(8));
    options.driver = driver_.get();
    SLUICE_ASSERT_OK_AND_ASSIGN(engine_, CopyEngine::Start(options));
  }

  std::byte* Map(device::Placement where, Bytes size) {
    const auto memory = driver_->Create(where, size);
    const auto address = driver_->Reserve(size, where.kind);
    EXPECT_THAT(driver_->Map(*address, size, *memory), IsOk());
    EXPECT_THAT(driver_->SetAccess(*address, size, DeviceIndex(0)), IsOk());
    return *address;
  }

  CopyRequest ToGpu(Bytes at, Bytes size, std::vector<Ticket> after = {}) {
    return {.direction = CopyDirection::kHostToDevice,
            .pieces = {{gpu_ + at.count(), host_ + at.count(), size}},
            .after = std::move(after),
            .label = "in"};
  }
  CopyRequest ToHost(Bytes at, Bytes size, std::vector<Ticket> after = {}) {
    return {.direction = CopyDirection::kDeviceToHost,
            .pieces = {{host_ + at.count(), gpu_ + at.count(), size}},
            .after = std::move(after),
            .label = "out"};
  }

  const testing::TempDir directory_;
  std::unique_ptr<device::SimNode> node_;
  std::unique_ptr<device::Driver> driver_;
  std::byte* gpu_ = nullptr;
  std::byte* host_ = nullptr;
  std::unique_ptr<CopyEngine> engine_;
};

}  // namespace sluice::client
