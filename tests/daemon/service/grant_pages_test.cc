// Tests how the refill thread reads what ranks write into their pages. The
// tests use the real clock, so they compare shares, not speeds.
#include "daemon/service/grant_pages.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <cmath>
#include <functional>
#include <memory>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

constexpr double kRate = 1e8;

template <typename Page>
struct Unmap {
  void operator()(Page* page) const { munmap(page, sizeof(Page)); }
};

// Two ranks on one link. Each rank uses its grants without delay.
class TwoHungryRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    SLUICE_ASSERT_OK_AND_ASSIGN(
        pages_, GrantPages::Start({{"pcie0", kRate, kRate}}, 1, &clock_));
    limits_.reset(static_cast<GrantLimits*>(
        Map(*pages_->limits(), sizeof(GrantLimits), PROT_READ)));
    for (int slot : {0, 1}) {
      SLUICE_ASSERT_OK_AND_ASSIGN(const UniqueFd fd, pages_->Attach(slot, 0));
      use_[slot].reset(static_cast<GrantUse*>(
          Map(fd, sizeof(GrantUse), PROT_READ | PROT_WRITE)));
    }
  }
  static void* Map(const UniqueFd& fd, size_t size, int protection) {
    void* page = mmap(nullptr, size, protection, MAP_SHARED, fd.get(), 0);
    SLUICE_CHECK(page != MAP_FAILED);
    return page;
  }
  // Runs for `time`. Returns the bytes granted to each rank in that time.
  std::array<double, 2> Run(absl::Duration time) {
    const std::array<uint64_t, 2> before = {Limit(0), Limit(1)};
    const absl::Time end = clock_.Now() + time;
    while (clock_.Now() < end) {
      for (int slot : {0, 1}) use_[slot]->slot.used_bytes[kH2d] = Limit(slot);
      absl::SleepFor(absl::Microseconds(200));
    }
    return {static_cast<double>(Limit(0) - before[0]),
            static_cast<double>(Limit(1) - before[1])};
  }
  // Expects that `claim` is true in one of 20 tries: a thread that gets no CPU
  // for longer than a window uses nothing in that time.
  void ExpectSoon(const std::function<bool()>& claim) {
    for (int i = 0; i < 19; ++i) {
      if (claim()) return;
    }
    EXPECT_TRUE(claim());
  }
  uint64_t Limit(int slot) const {
    return limits_->slots[slot].limit_bytes[kH2d];
  }

  MonotonicClock clock_;
  std::unique_ptr<GrantPages> pages_;
  std::unique_ptr<GrantLimits, Unmap<GrantLimits>> limits_;
  std::array<std::unique_ptr<GrantUse, Unmap<GrantUse>>, 2> use_;
};

// Guards against a user that reopens the page's descriptor for writing.
TEST_F(TwoHungryRanks, ThePageOfLimitsIsReadOnlyForEveryUser) {
  struct stat info;
  ASSERT_EQ(fstat(pages_->limits()->get(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0444u);
}

TEST_F(TwoHungryRanks, RanksShareEvenlyUntilOneHasADeadline) {
  Run(absl::Milliseconds(300));  // uses up rank 0's wide first window
  ExpectSoon([&] {
    const std::array<double, 2> given = Run(absl::Milliseconds(100));
    return std::abs(given[0] - given[1]) <= 0.2 * given[0];
  });
  GrantUseSlot& slot = use_[1]->slot;
  // The rank with the deadline goes first, and then the other rank catches up.
  ExpectSoon([&] {
    Run(absl::Milliseconds(300));  // evens out an earlier try
    slot.due_ns[kH2d] = static_cast<uint64_t>(
        absl::ToUnixNanos(clock_.Now() + absl::Milliseconds(50)));
    slot.due_bytes[kH2d] = slot.used_bytes[kH2d] + (uint64_t{1} << 30);
    const std::array<double, 2> first = Run(absl::Milliseconds(100));
    // Extreme values do no harm.
    slot.due_ns[kH2d] = UINT64_MAX;
    slot.due_bytes[kH2d] = UINT64_MAX;
    Run(absl::Milliseconds(10));
    slot.due_bytes[kH2d] = 0;
    const std::array<double, 2> then = Run(absl::Milliseconds(50));
    return first[1] > 3 * first[0] && then[0] > 3 * then[1];
  });
}

}  // namespace
}  // namespace sluice::daemon
