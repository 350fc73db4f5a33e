#include "daemon/state/death_record.h"

#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

// Returns the record as the next daemon opens it.
DeathRecord ReopenedRecord(const DeathRecord& record) {
  auto next = DeathRecord::Open(UniqueFd(dup(record.fd())));
  SLUICE_CHECK_OK(next.status());
  return *std::move(next);
}

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(1000 + seconds);
}

TEST(DeathRecord, DaemonsThatDidNotEndInOrderAreCounted) {
  SLUICE_ASSERT_OK_AND_ASSIGN(DeathRecord record,
                              DeathRecord::Open(UniqueFd()));
  record.Begin(At(0));
  EXPECT_EQ(record.Recent(At(0)), 0);
  for (int death = 1; death <= 3; ++death) {
    record = ReopenedRecord(record);
    record.Begin(At(death));
    EXPECT_EQ(record.Recent(At(death)), death);
  }
  record.EndInOrder();
  record = ReopenedRecord(record);
  record.Begin(At(4));
  EXPECT_EQ(record.Recent(At(4)), 3);
}

TEST(DeathRecord, OldDeathsAreForgotten) {
  SLUICE_ASSERT_OK_AND_ASSIGN(DeathRecord record,
                              DeathRecord::Open(UniqueFd()));
  record.Begin(At(0));
  record.Begin(At(1));
  record.Begin(At(5));
  EXPECT_EQ(record.Recent(At(10.5)), 2);
  EXPECT_EQ(record.Recent(At(11.5)), 1);
  EXPECT_EQ(record.Recent(At(15.5)), 0);
  record.Begin(At(16));
  record.Forget();
  EXPECT_EQ(record.Recent(At(16)), 0);
}

TEST(DeathRecord, AtMost16DeathsAreCounted) {
  SLUICE_ASSERT_OK_AND_ASSIGN(DeathRecord record,
                              DeathRecord::Open(UniqueFd()));
  for (int i = 0; i < 100; ++i) record.Begin(At(0));
  EXPECT_EQ(record.Recent(At(1)), 16);
}

TEST(DeathRecord, TheLastReasonIsKept) {
  SLUICE_ASSERT_OK_AND_ASSIGN(DeathRecord record,
                              DeathRecord::Open(UniqueFd()));
  EXPECT_EQ(record.why(), "");
  record.SayWhy("a long line that somebody else replaces");
  record.SayWhy("the port is taken");
  EXPECT_EQ(ReopenedRecord(record).why(), "the port is taken");
  record.SayWhy(std::string(10'000, 'x'));
  EXPECT_EQ(record.why(), std::string(511, 'x'));
}

TEST(DeathRecord, AnInvalidRecordIsReplacedByAnEmptyOne) {
  UniqueFd other(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(write(other.get(), std::string(5000, '\xff').data(), 5000), 5000);
  SLUICE_ASSERT_OK_AND_ASSIGN(const DeathRecord record,
                              DeathRecord::Open(std::move(other)));
  EXPECT_EQ(record.Recent(At(0)), 0);
  EXPECT_EQ(record.why(), "");
}

}  // namespace
}  // namespace sluice::daemon
