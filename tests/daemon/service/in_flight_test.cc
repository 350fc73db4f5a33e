// Tests the count of descriptors in flight, by what the kernel reports, with
// real sockets and descriptors.
#include "daemon/service/in_flight.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "proto/base/shortage.h"
#include "proto/wire.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
enum class Room { kYes, kUnread, kOthers };

Room RoomOf(const absl::Status& taken) {
  if (taken.ok()) return Room::kYes;
  return ShortageOf(taken) == Shortage::kOpenFiles ? Room::kOthers
                                                   : Room::kUnread;
}

const Principal kA{1, ""}, kB{2, ""};
const absl::Time kStart = absl::FromUnixSeconds(1000);

struct Ends {
  UniqueFd ours, theirs;

  Ends() {
    int both[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, both), 0);
    ours = UniqueFd(both[0]);
    theirs = UniqueFd(both[1]);
  }
  void Send(int count) {
    const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
    wire::Packet packet;
    for (int i = 0; i < count; ++i) {
      packet.mutable_reply()->mutable_granted()->add_extent_bytes(1);
    }
    EXPECT_THAT(
        wire::Send(ours.get(), packet, std::vector<int>(count, null.get())),
        IsOk());
  }
  void Receive() {
    EXPECT_THAT(wire::Receive(theirs.get(), MSG_DONTWAIT).status(), IsOk());
  }
};

class InFlightTest : public ::testing::Test {
 protected:
  // The limit is 8 descriptors for each user, and 16 for all users.
  InFlightTest() : quotas_(Eight()), in_flight_(&quotas_) {}

  static Shares Eight() {
    Shares shares;
    shares.fill({8, 16});
    return shares;
  }
  Room Take(const Ends& ends, const Principal& who, int count) {
    return RoomOf(in_flight_.Take(ends.ours.get(), who, count, kStart));
  }
  int64_t used(const Principal& who) {
    return quotas_.used(who, Resource::kInFlight);
  }

  Quotas quotas_;
  InFlight in_flight_;
};

TEST_F(InFlightTest, DescriptorsCountUntilTheKernelReportsThemReceived) {
  Ends ends;
  ASSERT_EQ(Take(ends, kA, 5), Room::kYes);
  ends.Send(5);
  in_flight_.Sweep(kStart);
  EXPECT_EQ(used(kA), 5);
  EXPECT_EQ(Take(ends, kA, 5), Room::kUnread);
  ends.Receive();
  EXPECT_EQ(Take(ends, kA, 5), Room::kYes);
  EXPECT_EQ(used(kA), 5);
}

TEST_F(InFlightTest, UnreadDescriptorsOfOneUserLeaveRoomForAnother) {
  Ends deaf, more, other;
  ASSERT_EQ(Take(deaf, kA, 8), Room::kYes);
  deaf.Send(8);
  EXPECT_EQ(Take(more, kA, 1), Room::kOthers);
  EXPECT_EQ(Take(other, kB, 8), Room::kYes);
  other.Send(8);
  deaf.Receive();
  EXPECT_EQ(RoomOf(in_flight_.Take(more.ours.get(), kA, 1,
                                   kStart + absl::Seconds(1))),
            Room::kYes);
}

TEST_F(InFlightTest, AUserWithNoDescriptorsInFlightAlwaysHasRoom) {
  Ends a, b, c;
  ASSERT_EQ(Take(a, kA, 8), Room::kYes);
  ASSERT_EQ(Take(b, kB, 8), Room::kYes);
  a.Send(8);
  b.Send(8);
  EXPECT_EQ(Take(c, {3, ""}, 4), Room::kYes);
}

// Guards against a user that gets any number of descriptors in flight: send 8,
// end the session, repeat.
TEST_F(InFlightTest, DescriptorsOfAnEndedSessionCountUntilItsPeerEnds) {
  Ends ends;
  ASSERT_EQ(Take(ends, kA, 8), Room::kYes);
  ends.Send(8);
  EXPECT_FALSE(in_flight_.End(std::move(ends.ours)));
  EXPECT_NE(in_flight_.deadline(), absl::InfiniteFuture());
  EXPECT_TRUE(in_flight_.Sweep(kStart).empty());
  EXPECT_EQ(used(kA), 8);
  // A forked child may hold the peer's end, so the ended session still counts.
  EXPECT_EQ(quotas_.used(kA, Resource::kSessions), 1);
  ends.theirs.Reset();  // closed by the peer's last process
  EXPECT_EQ(in_flight_.Sweep(kStart + absl::Seconds(1)).size(), 1u);
  EXPECT_EQ(used(kA), 0);
  EXPECT_EQ(quotas_.used(kA, Resource::kSessions), 0);
  EXPECT_EQ(in_flight_.deadline(), absl::InfiniteFuture());
}

TEST_F(InFlightTest, DescriptorsThatWereNotSentAreUncounted) {
  Ends ends;
  ASSERT_EQ(Take(ends, kA, 8), Room::kYes);
  in_flight_.Undo(ends.ours.get(), 7);
  EXPECT_EQ(used(kA), 1);
  in_flight_.Undo(ends.ours.get(), 1);
  EXPECT_EQ(used(kA), 0);
  EXPECT_TRUE(in_flight_.End(std::move(ends.ours)));
}

// Guards against a takeover that resets the count of descriptors in flight.
TEST(InFlight, DescriptorsSentByAnEarlierDaemonCountUntilRead) {
  Quotas quotas(SharesOf({}, 4096));
  InFlight in_flight(&quotas);
  Ends unread, read;
  unread.Send(1);
  in_flight.Adopt(unread.ours.get(), kA);
  in_flight.Adopt(read.ours.get(), kB);
  EXPECT_EQ(quotas.used(kA, Resource::kInFlight), in_flight.most());
  EXPECT_EQ(quotas.used(kB, Resource::kInFlight), 0);
  EXPECT_EQ(RoomOf(in_flight.Take(unread.ours.get(), kA, 1, kStart)),
            Room::kUnread);
  EXPECT_THAT(wire::Receive(unread.theirs.get()), IsOk());
  EXPECT_EQ(RoomOf(in_flight.Take(unread.ours.get(), kA, 1, kStart)),
            Room::kYes);
}

}  // namespace
}  // namespace sluice::daemon
