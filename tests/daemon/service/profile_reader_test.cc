#include "daemon/service/profile_reader.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "proto/plan/codec.h"
#include "proto/wire.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Encoded(int buffers) {
  plan::RankProfile profile;
  plan::SegmentKind segment;
  segment.name = "ffn";
  for (int i = 0; i < buffers; ++i) {
    segment.trace.buffers.push_back({i, i, i + 1, Bytes(64)});
  }
  segment.trace.end = buffers;
  profile.segments = {segment};
  profile.kinds[0].layers = 1;
  return plan::Encode(profile);
}

UniqueFd Memfd(const std::string& bytes) {
  auto fd = wire::ToMemfd("profile", bytes);
  EXPECT_THAT(fd, IsOk());
  return *std::move(fd);
}

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

class ProfileReaderTest : public ::testing::Test {
 protected:
  struct Answer {
    uint64_t session;
    absl::StatusOr<ProfileWithHash> profile;
  };

  void Make(ProfileLimits limits = {}, int64_t decoded = 1 << 23) {
    Shares shares = SharesOf({}, 1024);
    shares[static_cast<size_t>(Resource::kProfileBytes)] = {decoded,
                                                            4 * decoded};
    quotas_ = std::make_unique<Quotas>(shares);
    loop_ = *Loop::Make(&clock_);
    codec_ = std::make_unique<TaskThread>("codec");
    reader_ = std::make_unique<ProfileReader>(
        loop_.get(), codec_.get(), quotas_.get(),
        [this](SessionId session, RequestId,
               absl::StatusOr<ProfileWithHash> profile) {
          answers_.push_back({session.value(), std::move(profile)});
          if (!keep_ && answers_.back().profile.ok()) {
            answers_.back().profile->profile = nullptr;
          }
          if (answers_.size() == wanted_) loop_->Stop();
        },
        limits);
  }
  absl::Status Read(uint64_t session, uint32_t uid, const std::string& bytes) {
    UniqueFd memfd = Memfd(bytes);
    return reader_->Read(SessionId(session), RequestId(++request_),
                         Principal{uid, ""}, memfd);
  }
  void Await(size_t answers) {
    wanted_ = answers;
    loop_->Run();
  }
  void TearDown() override {
    codec_.reset();
    reader_.reset();
  }

  int64_t Used(uint32_t uid, Resource what) {
    reader_->GiveBackDropped();
    return quotas_->used(Principal{uid, ""}, what);
  }

  MonotonicClock clock_;
  std::unique_ptr<Quotas> quotas_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<TaskThread> codec_;
  std::unique_ptr<ProfileReader> reader_;
  std::vector<Answer> answers_;
  size_t wanted_ = 0;
  bool keep_ = true;
  uint64_t request_ = 0;
};

TEST_F(ProfileReaderTest, AProfileIsRead) {
  Make();
  ASSERT_THAT(Read(1, 7, Encoded(3)), IsOk());
  Await(1);
  ASSERT_THAT(answers_[0].profile, IsOk());
  EXPECT_EQ(answers_[0].profile->profile->segments[0].trace.buffers.size(), 3u);
  EXPECT_EQ(answers_[0].profile->units.size(), 1u);
}

// Guards against an unbounded queue with a descriptor per profile.
TEST_F(ProfileReaderTest, WaitingProfilesAreLimitedPerSessionAndPerUser) {
  Make({.per_session = 2, .per_user = 5, .all = 7});
  for (uint64_t session = 1; session <= 2; ++session) {
    EXPECT_THAT(Read(session, 7, Encoded(1)), IsOk());
    EXPECT_THAT(Read(session, 7, Encoded(1)), IsOk());
    EXPECT_THAT(Read(session, 7, Encoded(1)),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("2 profiles of this session")));
  }
  EXPECT_THAT(Read(3, 7, Encoded(1)), IsOk());
  // One profile is being read, and no longer counts as waiting.
  EXPECT_THAT(Read(3, 7, Encoded(1)), IsOk());
  EXPECT_THAT(Read(4, 7, Encoded(1)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("5 profiles of user 7")));
  EXPECT_THAT(Read(5, 8, Encoded(1)), IsOk());
  EXPECT_THAT(Read(5, 8, Encoded(1)), IsOk());
  EXPECT_THAT(Read(6, 9, Encoded(1)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("7 profiles of all users")));
  Await(8);
  EXPECT_EQ(reader_->waiting(), 0u);
}

// Guards against a shared pointer to the descriptor: a use count gives no
// memory ordering, so it cannot show whether the codec's thread is done.
TEST_F(ProfileReaderTest, OnlyDescriptorsOfAcceptedProfilesAreTaken) {
  const std::string bytes = Encoded(1);
  Make({.encoded = Bytes(static_cast<int64_t>(bytes.size()))});
  UniqueFd refused = Memfd(bytes + " ");
  EXPECT_FALSE(
      reader_->Read(SessionId(1), RequestId(1), Principal{7, ""}, refused)
          .ok());
  EXPECT_TRUE(refused);
  UniqueFd taken = Memfd(bytes);
  EXPECT_THAT(
      reader_->Read(SessionId(1), RequestId(2), Principal{7, ""}, taken),
      IsOk());
  EXPECT_FALSE(taken);
  Await(1);
}

TEST_F(ProfileReaderTest, ATooLongProfileIsRefusedBeforeItIsRead) {
  Make({.encoded = Bytes(1000)});
  EXPECT_THAT(Read(1, 7, Encoded(1000)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("and the limit is 1000: record fewer")));
}

// Guards against 57 MiB of text that decode to 1 GB.
TEST_F(ProfileReaderTest, AProfileWithTooManyValuesIsRefused) {
  Make();
  std::string bomb = "{\"segments\":[";
  while (bomb.size() < (3 << 20)) bomb += "[],";
  ASSERT_THAT(Read(1, 7, bomb + "[]]}"), IsOk());
  Await(1);
  EXPECT_THAT(answers_[0].profile,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("has more than 524288 values")));
}

// Guards against keeping 131 MiB per rank until its peers submit profiles, too.
TEST_F(ProfileReaderTest, DecodedProfilesOfAUserAreLimitedUntilDropped) {
  Make({}, /*decoded=*/6000);
  for (uint64_t session = 1; session <= 3; ++session) {
    ASSERT_THAT(Read(session, 7, Encoded(80)), IsOk());  // 32 bytes per buffer
  }
  ASSERT_THAT(Read(4, 8, Encoded(80)), IsOk());
  Await(4);
  int refused = 0;
  for (const Answer& answer : answers_) {
    if (answer.profile.ok()) continue;
    ++refused;
    EXPECT_THAT(answer.profile.status(),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("user 7 has "),
                               HasSubstr("and the limit is 6000: submit "
                                         "smaller ones"))));
  }
  EXPECT_EQ(refused, 2);
  EXPECT_EQ(quotas_->TakeSnapshot(nullptr)
                .refused[static_cast<size_t>(Resource::kProfileBytes)],
            2u);
  EXPECT_GT(Used(7, Resource::kProfileBytes), 2000);
  EXPECT_LE(Used(7, Resource::kProfileBytes), 6000);
  answers_.clear();
  EXPECT_EQ(Used(7, Resource::kProfileBytes), 0);
}

TEST_F(ProfileReaderTest, DroppedProfilesAreNotCounted) {
  Make({}, /*decoded=*/6000);
  keep_ = false;
  for (uint64_t session = 1; session <= 5; ++session) {
    ASSERT_THAT(Read(session, 7, Encoded(80)), IsOk());
  }
  Await(5);
  for (const Answer& answer : answers_) EXPECT_THAT(answer.profile, IsOk());
}

TEST_F(ProfileReaderTest, ALargeProfileOfOneUserDoesNotDelayAnotherUsers) {
  Make();
  for (uint64_t session = 1; session <= 3; ++session) {
    ASSERT_THAT(Read(session, 7, Encoded(20000)), IsOk());
  }
  ASSERT_THAT(Read(9, 8, Encoded(1)), IsOk());
  // A user's time is counted only while it has sessions.
  quotas_->Charge({7, ""}, Resource::kSessions);
  Await(4);
  EXPECT_EQ(answers_[1].session, 9u);
  EXPECT_GT(Used(7, Resource::kCodecTime), 0);
}

// Guards against descriptors that stay open after the session's end.
TEST_F(ProfileReaderTest, AProfileIsDroppedWithItsSession) {
  Make();
  std::vector<int> memfds;
  for (int i = 0; i < 3; ++i) {
    UniqueFd memfd = Memfd(Encoded(1));
    memfds.push_back(memfd.get());
    ASSERT_THAT(reader_->Read(SessionId(1), RequestId(++request_),
                              Principal{7, ""}, memfd),
                IsOk());
  }
  ASSERT_THAT(Read(2, 7, Encoded(1)), IsOk());
  EXPECT_TRUE(IsOpen(memfds[1]));
  reader_->Forget(SessionId(1));
  EXPECT_FALSE(IsOpen(memfds[1]));
  EXPECT_FALSE(IsOpen(memfds[2]));
  Await(1);
  EXPECT_EQ(answers_[0].session, 2u);
}

}  // namespace
}  // namespace sluice::daemon
