// A daemon that dies while it makes a checkpoint in parts (daemon/state).
#include <fmt/format.h>
#include <unistd.h>

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/kept_rank.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

constexpr int kRanks = 20;

uint64_t WordAt(const UniqueFd& file, uint64_t at) {
  uint64_t word = 0;
  SLUICE_CHECK(pread(file.get(), &word, sizeof(word), static_cast<off_t>(at)) ==
               sizeof(word));
  return word;
}

// A checkpoint is begun and has not ended: the state's header is three words,
// the second of which is the room of a checkpoint, and two of these follow;
// one that does not count begins with 0.
bool IsDrafting(const UniqueFd& state) {
  constexpr uint64_t kHeader = 24;
  const uint64_t room = WordAt(state, 8);
  return WordAt(state, kHeader) == 0 || WordAt(state, kHeader + room) == 0;
}

class Drafted : public ::testing::TestWithParam<int> {
 protected:
  Drafted() {
    daemon_.Start();
    for (int i = 0; i < kRanks; ++i) {
      ranks_.push_back(Attached(daemon_, fmt::format("job{}", i)));
      auto lease = ranks_.back().Lease(wire::Lease::GPU, KiB(64));
      SLUICE_CHECK_OK(lease.status());
      leases_.push_back(lease->body.granted().lease_id());
    }
  }
  // Each has a record, and is in its rank's history.
  void Ask() { EXPECT_FALSE(ranks_[asked_++ % kRanks].Free(1 << 20).ok()); }

  KeptDaemon daemon_;
  std::vector<RawClient> ranks_;
  std::vector<uint64_t> leases_;
  size_t asked_ = 0;
};

TEST_P(Drafted, TheNextOneHasWhatCountedUntilThen) {
  const UniqueFd state = daemon_.Copy("state");
  while (!IsDrafting(state)) {
    ASSERT_LT(asked_, 100'000u);
    Ask();
  }
  EXPECT_GT(asked_, 1000u);  // not at each start
  for (int more = 0; more < GetParam(); ++more) Ask();
  daemon_.Kill();
  ASSERT_TRUE(IsDrafting(state));
  daemon_.Start();
  for (int i = 0; i < kRanks; ++i) {
    const auto event = ranks_[i].NextEvent(absl::Seconds(20));
    ASSERT_THAT(event, IsOk()) << daemon_.Log();
    EXPECT_TRUE(event->has_taken_over());
    EXPECT_THAT(ranks_[i].Free(leases_[i]), IsOk());
  }
  EXPECT_THAT(WaitUntilFree(daemon_.socket(), 0, absl::Seconds(20)), IsOk());
}

INSTANTIATE_TEST_SUITE_P(After, Drafted, ::testing::Values(0, 1, 7, 15));

}  // namespace
}  // namespace sluice::testing
