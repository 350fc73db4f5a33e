// Tests address ranges that the kernel refuses to unmap.
#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "tests/device/sim_fixture.h"

namespace sluice::device {
namespace {

using testing::IsOk;
using testing::StatusIs;

// Uses up the process's limit of mappings: gives pages of `range_` alternating
// protection.
class AllMappings {
 public:
  AllMappings() {
    std::ifstream("/proc/sys/vm/max_map_count") >> most_;
    if (most_ > kTooMany) return;
    range_ = mmap(nullptr, size(), PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range_ == MAP_FAILED) return;
    for (size_t at = 0; at < size() && !full_; at += 2 * kPage) {
      full_ = mprotect(static_cast<char*>(range_) + at, kPage, PROT_READ) != 0;
    }
  }
  ~AllMappings() {
    if (range_ != MAP_FAILED) munmap(range_, size());
  }
  AllMappings(const AllMappings&) = delete;
  bool full() const { return full_; }

 private:
  static constexpr size_t kPage = 4096;
  // A test that fills more would take seconds.
  static constexpr size_t kTooMany = 100'000;
  size_t size() const { return 2 * kPage * most_; }
  size_t most_ = 0;
  void* range_ = MAP_FAILED;
  bool full_ = false;
};

// The kernel merges neighbouring mappings, so unmapping the middle range needs
// one mapping more. Guards against counting a refused unmap as freed, which
// loses the range.
TEST_F(SimTest, AReservationThatTheKernelDoesNotUnmapStays) {
#ifdef SLUICE_SANITIZED
  GTEST_SKIP() << "a sanitizer ends a process that cannot map memory";
#endif
  std::vector<Address> ranges;
  for (int i = 0; i < 3; ++i) {
    SLUICE_ASSERT_OK_AND_ASSIGN(
        ranges.emplace_back(), driver_->Reserve(MiB(2), Placement::Kind::kGpu));
  }
  std::sort(ranges.begin(), ranges.end());
  if (ranges[1] - ranges[0] != MiB(2).count() ||
      ranges[2] - ranges[1] != MiB(2).count()) {
    GTEST_SKIP() << "the reservations are not adjacent here";
  }
  {
    const AllMappings all;
    if (!all.full()) GTEST_SKIP() << "the limit of mappings was not reached";
    EXPECT_THAT(driver_->FreeReservation(ranges[1], MiB(2)),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         ::testing::HasSubstr("release")));
  }
  for (const Address range : ranges) {
    EXPECT_THAT(driver_->FreeReservation(range, MiB(2)), IsOk());
  }
}

}  // namespace
}  // namespace sluice::device
