// Tests the functions of ABI 3, which state by when copies are needed.
#include <array>
#include <cmath>
#include <limits>
#include <thread>

#include "gmock/gmock.h"
#include "tests/client/c_abi_fixture.h"

namespace sluice::client {
namespace {

using ::testing::HasSubstr;

constexpr int kIn = SLUICE_HOST_TO_GPU, kOut = SLUICE_GPU_TO_HOST;

class CAbi3Test : public CAbiTest {
 protected:
  CAbi3Test() {
    EXPECT_EQ(sluice_region_lease(session_, SLUICE_GPU, kSize, &gpu_), 0);
    EXPECT_EQ(sluice_region_lease(session_, SLUICE_HOST, kSize, &host_), 0);
    EXPECT_EQ(sluice_engine_start(session_, &engine_), 0);
    // Copies wait for grants only while the heartbeat is fresh.
    for (auto& limit : daemon_.limits().slots[0].limit_bytes) limit = 0;
    daemon_.Beat();
  }
  ~CAbi3Test() override {
    sluice_engine_stop(engine_);
    sluice_region_free(host_);
    sluice_region_free(gpu_);
  }

  struct Told {
    uint64_t up_to = 0;  // the published due_bytes
    absl::Duration in;   // the published due_ns, counted from Copy's call
  };
  // Enqueues one copy of kSize bytes, reads the deadline that the engine
  // publishes for it, and then lets the copy run.
  Told Copy(int direction) {
    void *gpu = sluice_region_data(gpu_), *host = sluice_region_data(host_);
    const GrantUseSlot& slot = daemon_.use().slot;
    const uint64_t end = slot.used_bytes[direction].load() + kSize;
    sluice_ticket ticket;
    const int64_t before = NowNs();
    EXPECT_EQ(sluice_engine_copy(
                  engine_, direction, direction == kIn ? gpu : host,
                  direction == kIn ? host : gpu, kSize, nullptr, 0, &ticket),
              0);
    // The engine publishes the deadline before it books the copy's bytes.
    while (slot.used_bytes[direction].load() < end) {
      daemon_.Beat();
      std::this_thread::yield();
    }
    const Told told = {
        slot.due_bytes[direction].load(),
        absl::Nanoseconds(static_cast<int64_t>(slot.due_ns[direction].load()) -
                          before)};
    daemon_.limits().slots[0].limit_bytes[direction] = end;
    EXPECT_EQ(sluice_engine_wait(engine_, ticket), 0);
    return told;
  }
  static int64_t NowNs() { return absl::ToUnixNanos(MonotonicClock().Now()); }

  static constexpr size_t kSize = 65'536;
  sluice_region *gpu_ = nullptr, *host_ = nullptr;
  sluice_engine* engine_ = nullptr;
};

TEST_F(CAbi3Test, ACopyThatWaitsForBandwidthPublishesItsDeadline) {
  EXPECT_EQ(Copy(kIn).up_to, 0u)
      << "no deadline is published before the slack is known";
  ASSERT_EQ(sluice_engine_know_slack(engine_, kIn, 20), 0);
  const Told in = Copy(kIn);
  EXPECT_EQ(in.up_to, 2 * kSize);
  EXPECT_GE(in.in, absl::Seconds(20));
  EXPECT_LT(in.in, absl::Seconds(30));
  EXPECT_EQ(Copy(kOut).up_to, 0u)
      << "slack of one direction gives the other no deadline";
  ASSERT_EQ(sluice_engine_know_slack(engine_, kOut, 0), 0);
  EXPECT_EQ(Copy(kOut).up_to, 2 * kSize);
  EXPECT_EQ(Copy(kIn).up_to, 3 * kSize)
      << "slack of the other direction changes nothing here";
  ASSERT_EQ(sluice_engine_know_slack(engine_, kIn, -1), 0);
  EXPECT_EQ(Copy(kIn).up_to, 0u);
}

TEST_F(CAbi3Test, ABadSlackOrDirectionIsAnError) {
  for (const double seconds :
       {std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(sluice_engine_know_slack(engine_, kIn, seconds),
              SLUICE_INVALID_ARGUMENT);
    EXPECT_THAT(sluice_last_error(), HasSubstr("seconds must be a number"));
  }
  for (const int direction : {-1, 2}) {
    EXPECT_EQ(sluice_engine_know_slack(engine_, direction, 1),
              SLUICE_INVALID_ARGUMENT);
  }
  EXPECT_EQ(sluice_engine_know_slack(nullptr, kIn, 1), SLUICE_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace sluice::client
