// Tests waiting leases: their order, what gives them a turn, how a wait ends.
#include "daemon/core/waiting.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/shortage.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::IsOk;
using sluice::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kTooLate = absl::StatusCode::kDeadlineExceeded;
constexpr absl::Duration kLong = absl::Seconds(60);

NodeConfig Node() {
  NodeConfig node = SmallNode();  // 16 MiB per GPU
  node.wait_limits = {.each = 3, .all = 5, .longest = absl::Minutes(5)};
  return node;
}

class WaitingLeases : public ::testing::Test {
 protected:
  struct Asked {
    SessionId session;
    RequestId request;
  };
  Asked Wait(SessionId session, Bytes size, absl::Duration wait = kLong,
             PoolId pool = Gpu(0)) {
    const Asked asked{session, RequestId(++last_request_)};
    node_.Ask(session, LeaseRequest{pool, size, wait}, asked.request);
    return asked;
  }
  // Returns the answer, or Unavailable while the lease waits.
  absl::StatusOr<GrantedReply> Answer(const Asked& asked) {
    const auto reply = node_.replies.find({asked.session, asked.request});
    if (reply == node_.replies.end()) return absl::UnavailableError("waits");
    if (const auto* why = std::get_if<absl::Status>(&reply->second)) {
      return *why;
    }
    return std::get<GrantedReply>(reply->second);
  }
  absl::Status Result(const Asked& asked) { return Answer(asked).status(); }
  bool Waits(const Asked& asked) { return absl::IsUnavailable(Result(asked)); }
  LeaseId Lease(SessionId session, Bytes size, PoolId pool = Gpu(0)) {
    const auto lease = node_.Lease(session, pool, size);
    SLUICE_CHECK(lease.ok());
    return lease->lease;
  }
  void Free(SessionId session, LeaseId lease) {
    node_.Ask(session, FreeRequest{lease});
  }
  void Pass(absl::Duration time) {
    node_.clock.Advance(time);
    Tick();
  }
  void Tick() {
    const absl::Time now = node_.clock.Now();
    node_.Run([&](Core& core) { return core.Tick(now); });
  }
  // Sets bob's budget.
  absl::Status SetBudget(Bytes gpu) {
    return node_.Change(BudgetChange{{.uid = 2}, gpu, {}, ""});
  }
  absl::Status Reserve(PoolId pool, uint32_t uid, Bytes bytes) {
    return node_.Change(ReservationChange{pool, {uid, ""}, bytes, ""});
  }
  uint64_t Ended(WaitEnd how) { return node_.core.stats().waits[how]; }
  std::vector<std::string> EventTexts() {
    std::vector<std::string> texts;
    for (const LoggedEvent& event : node_.core.log().events()) {
      texts.push_back(event.text);
    }
    return texts;
  }

  CoreDriver node_{Node()};
  const SessionId alice_ = node_.Attach("a", 0, 1, 1);
  const SessionId bob_ = node_.Attach("b", 0, 1, 2);
  const SessionId carol_ = node_.Attach("c", 0, 1, 3);
  uint64_t last_request_ = 1000;
};

// NextDeadline is the earliest of all deadlines and next attempts.
TEST(WaitingQueue, ALeaseIsTriedAgainAtTheTimeItAskedFor) {
  const absl::Time now = absl::UnixEpoch();
  WaitingQueue line;
  EXPECT_EQ(line.NextDeadline(), absl::InfiniteFuture());
  for (const int seconds : {60, 50}) {
    line.Join({.since = now, .deadline = now + absl::Seconds(seconds)});
  }
  EXPECT_EQ(line.NextDeadline(), now + absl::Seconds(50));
  int tried = 0;
  const auto release = [&](absl::Time at) {
    line.Release(
        at, Woken(), [](const Waiter&) { return Rights{}; },
        [&](const Waiter&) -> WaitingQueue::Turn {
          ++tried;
          return WaitingQueue::Stay{Waiter::Lacks::kUser,
                                    at + absl::Seconds(1)};
        },
        [](const PlaceInLine&, const Waiter&) {});
  };
  release(now);  // the second waits behind the first, of the same user
  EXPECT_EQ(tried, 1);
  EXPECT_EQ(line.NextDeadline(), now + absl::Seconds(1));
  release(now + absl::Milliseconds(999));
  EXPECT_EQ(tried, 1);
  release(now + absl::Seconds(1));
  EXPECT_EQ(tried, 2);
}

// Guards against a loop that tries each waiting lease at each event.
TEST(WaitingQueue, ALeaseIsTriedOnlyAfterChangesThatConcernIt) {
  const absl::Time now = absl::UnixEpoch();
  WaitingQueue line;
  uint64_t request = 0;
  const auto join = [&](PoolId pool, uint32_t uid) {
    line.Join({.session = SessionId(uid),
               .request = RequestId(++request),
               .asked = {pool, MiB(1)},
               .job = {{uid, ""}, "job"},
               .since = now,
               .deadline = now + kLong});
  };
  join(Gpu(0), 1);
  join(Gpu(1), 2);
  join(Gpu(1), 3);
  std::vector<uint64_t> tried;
  const auto release = [&](const Woken& woken, absl::Time at) {
    tried.clear();
    line.Release(
        at, woken, [](const Waiter&) { return Rights{}; },
        [&](const Waiter& waiter) -> WaitingQueue::Turn {
          tried.push_back(waiter.request.value());
          return WaitingQueue::Stay{};
        },
        [](const PlaceInLine&, const Waiter&) {});
    return tried;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(release({}, now), ElementsAre(1, 2)) << "3 is behind 2";
  EXPECT_THAT(release({}, now), IsEmpty());
  EXPECT_THAT(release({.pools = {Gpu(2), Host(0)}, .users = {{4, ""}}}, now),
              IsEmpty());
  EXPECT_THAT(release({.pools = {Gpu(1)}}, now), ElementsAre(2));
  EXPECT_THAT(release({.users = {{1, ""}}}, now), ElementsAre(1));
  line.Leave(SessionId(2), RequestId(2));
  EXPECT_THAT(release({}, now), ElementsAre(1, 3));
  EXPECT_THAT(release({}, now + kLong / 2), IsEmpty());
}

// Returns, by the rules at the top of waiting.h, whether a lease of 8 MiB of
// GPU 0 for job "a" of user 1 delays the later request `asked` of `job`.
bool StaysBehind(Waiter::Lacks lacks, const JobKey& job,
                 const LeaseRequest& asked, Rights rights, bool second_half) {
  const JobKey head = {{1, ""}, "a"};
  if (lacks == Waiter::Lacks::kPool) {
    return asked.pool == Gpu(0) && (second_half || asked.size >= MiB(8)) &&
           !(rights.reserved && job.principal.uid != 1) &&
           !(rights.promised && job != head);
  }
  return asked.pool.kind == PoolKind::kGpu &&
         (lacks == Waiter::Lacks::kUser ? job.principal == head.principal
                                        : job == head);
}

// Checks the rules for a new request, and for a waiting request at its turn.
TEST(WaitingQueue, WhatALeaseLacksDecidesWhichLaterLeasesItDelays) {
  const absl::Time began = absl::UnixEpoch();
  const auto check = [&](Waiter::Lacks lacks, const JobKey& job,
                         const LeaseRequest& asked, Rights rights,
                         bool second_half) {
    const absl::Time now = began + (second_half ? kLong / 2 : kLong / 3);
    WaitingQueue line;
    line.Join({.lacks = lacks,
               .session = SessionId(1),
               .asked = {Gpu(0), MiB(8)},
               .job = {{1, ""}, "a"},
               .since = began,
               .deadline = began + kLong});
    const Waiter same{.asked = {Gpu(0), MiB(8)}, .job = {{1, ""}, "a"}};
    EXPECT_EQ(line.Before(same, {}, now).count, 1);
    const bool stays = StaysBehind(lacks, job, asked, rights, second_half);
    const Waiter other{.asked = asked, .job = job};
    EXPECT_EQ(line.Before(other, rights, now).count, stays ? 1 : 0);
    line.Join({.session = SessionId(2),
               .asked = asked,
               .job = job,
               .since = now,
               .deadline = now + kLong});
    bool tried = false;
    line.Release(
        now, {.all = true}, [&](const Waiter&) { return rights; },
        [&](const Waiter& waiter) -> WaitingQueue::Turn {
          tried = tried || waiter.session == SessionId(2);
          return WaitingQueue::Stay{lacks};
        },
        [](const PlaceInLine&, const Waiter&) { FAIL(); });
    EXPECT_EQ(tried, !stays);
  };
  for (int of = 0; of < 3 * 6 * 6 * 4 * 2; ++of) {
    const auto lacks = static_cast<Waiter::Lacks>(of % 3);
    const Principal users[] = {{1, ""}, {1, "/other"}, {2, ""}};
    const JobKey job = {users[of / 3 % 3], of / 9 % 2 == 0 ? "a" : "b"};
    const PoolId pools[] = {Gpu(0), Gpu(1), Host(0)};
    const LeaseRequest asked = {pools[of / 18 % 3],
                                MiB(of / 54 % 2 == 0 ? 7 : 8)};
    const Rights rights = {of / 108 % 2 == 1, of / 216 % 2 == 1};
    SCOPED_TRACE(::testing::Message()
                 << "lacks " << of % 3 << ", job " << job.name << " of user "
                 << job.principal.uid << job.principal.cgroup << ", pool "
                 << of / 18 % 3 << ", " << asked.size.count()
                 << " bytes, reserved " << rights.reserved << ", promised "
                 << rights.promised);
    check(lacks, job, asked, rights, of / 432 == 1);
  }
}

TEST_F(WaitingLeases, AFittingLeaseIsGrantedAndAZeroWaitRefusedAtOnce) {
  EXPECT_THAT(Result(Wait(alice_, MiB(12))), IsOk());
  EXPECT_THAT(Result(Wait(bob_, MiB(8), absl::ZeroDuration())),
              StatusIs(kExhausted, HasSubstr("free 4 MiB of 16 MiB")));
  EXPECT_TRUE(node_.core.waiting().empty());
}

TEST_F(WaitingLeases, LeasesAreGrantedAfterAFreeOrADeath) {
  const LeaseId held = Lease(alice_, MiB(12));
  const Asked first = Wait(bob_, MiB(8)), second = Wait(carol_, MiB(16));
  EXPECT_TRUE(Waits(first));
  EXPECT_TRUE(Waits(second));
  Pass(absl::Seconds(3));
  Free(alice_, held);
  EXPECT_THAT(Result(first), IsOk());
  EXPECT_THAT(
      EventTexts(),
      Contains("rank 0 of job b: its turn for 8 MiB of GPU 0 after 3 s"));
  EXPECT_TRUE(Waits(second));
  node_.Die(bob_);
  EXPECT_THAT(Result(second), IsOk());
  EXPECT_EQ(Ended(WaitEnd::kGranted), 2u);
}

TEST_F(WaitingLeases, LeasesAreGrantedInOrderOfArrival) {
  const LeaseId held = Lease(alice_, MiB(16));
  const Asked first = Wait(bob_, MiB(12)), second = Wait(carol_, MiB(12)),
              third = Wait(bob_, MiB(12));
  Free(alice_, held);
  EXPECT_THAT(Result(first), IsOk());
  EXPECT_TRUE(Waits(second) && Waits(third));
  Free(bob_, Answer(first)->lease);
  EXPECT_THAT(Result(second), IsOk());
  EXPECT_TRUE(Waits(third));
  Free(carol_, Answer(second)->lease);
  EXPECT_THAT(Result(third), IsOk());
}

TEST_F(WaitingLeases, SmallerLaterLeasesPassInTheFirstHalfOfAWait) {
  Lease(alice_, MiB(8));
  const Asked head = Wait(bob_, MiB(12));
  EXPECT_THAT(node_.Lease(carol_, Gpu(0), MiB(2)).status(), IsOk());
  EXPECT_THAT(Result(Wait(carol_, MiB(2))), IsOk());
  EXPECT_THAT(node_.Lease(carol_, Gpu(0), MiB(12)).status(),
              StatusIs(kExhausted, HasSubstr("in front")))
      << "a lease that is not smaller must wait";
  Pass(kLong / 2);
  EXPECT_THAT(
      node_.Lease(carol_, Gpu(0), MiB(4)).status(),
      StatusIs(kExhausted,
               AllOf(HasSubstr("GPU 0: asked 4 MiB, free 4 MiB of 16 MiB, but "
                               "another user's job is in front: it has waited "
                               "30 s for 12 MiB of GPU 0"),
                     HasSubstr("lease_wait"))));
  const Asked small = Wait(carol_, MiB(4));
  EXPECT_TRUE(Waits(small));
  EXPECT_THAT(node_.Lease(carol_, Gpu(1), MiB(4)).status(), IsOk())
      << "no lease waits for GPU 1";
  EXPECT_THAT(node_.Lease(carol_, Host(0), MiB(4)).status(), IsOk());
  Pass(kLong / 2);
  EXPECT_THAT(Result(head), StatusIs(kTooLate));
  EXPECT_THAT(Result(small), IsOk()) << "no lease is in front any more";
}

TEST_F(WaitingLeases, ALeaseThatWasPassedIsNextInTheSecondHalf) {
  const LeaseId held = Lease(alice_, MiB(8));
  const Asked head = Wait(bob_, MiB(12));
  Lease(carol_, MiB(4));
  Pass(kLong / 2);
  const Asked small = Wait(carol_, MiB(4));
  Free(alice_, held);
  EXPECT_THAT(Result(head), IsOk());
  EXPECT_TRUE(Waits(small));
}

TEST_F(WaitingLeases, ATimeoutNamesRequestedAndFreeBytes) {
  Lease(alice_, MiB(12));
  const Asked head = Wait(bob_, MiB(8), absl::Seconds(5));
  Pass(absl::Seconds(3));
  const Asked behind = Wait(carol_, MiB(2), absl::Seconds(1));
  EXPECT_EQ(node_.core.NextDeadline(), node_.clock.Now() + absl::Seconds(1));
  Pass(absl::Seconds(1));
  Pass(absl::Seconds(1));
  EXPECT_THAT(Result(head),
              StatusIs(kTooLate,
                       "waited 5 s in vain: GPU 0: asked 8 MiB, free 4 MiB of "
                       "16 MiB; wait longer, ask for less, or see who holds it "
                       "(sluicectl status)"));
  EXPECT_EQ(ShortageOf(Result(head)), Shortage::kGpuMemory);
  EXPECT_THAT(
      Result(behind),
      StatusIs(kTooLate, HasSubstr("but another user's job is in front: it has "
                                   "waited 4 s for 8 MiB of GPU 0")));
  EXPECT_EQ(Ended(WaitEnd::kTimedOut), 2u);
  EXPECT_TRUE(node_.core.waiting().empty());
}

TEST_F(WaitingLeases, AnImpossibleLeaseIsRefusedAtOnce) {
  EXPECT_THAT(Result(Wait(bob_, MiB(20))),
              StatusIs(kExhausted, HasSubstr("the pool has 16 MiB, and no wait "
                                             "changes that")));
  ASSERT_THAT(SetBudget(MiB(8)), IsOk());
  EXPECT_THAT(
      Result(Wait(bob_, MiB(12))),
      StatusIs(
          kExhausted,
          AllOf(HasSubstr("the limit of user 2 (/a) is 8 MiB, and no wait"),
                HasSubstr("sluicectl budget set --user 2 --gpu 12MiB"))));
  ASSERT_THAT(Reserve(Gpu(0), 1, MiB(8)), IsOk());
  EXPECT_THAT(Result(Wait(carol_, MiB(12))),
              StatusIs(kExhausted, HasSubstr("8 MiB are reserved for others, "
                                             "and no wait changes that")));
  Lease(alice_, MiB(16), Gpu(1));
  EXPECT_THAT(Result(Wait(carol_, MiB(1), absl::Hours(1), Gpu(1))),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the longest is 5 min: wait less, or raise "
                                 "longest_wait_s in [quota]")));
  EXPECT_THAT(Result(Wait(carol_, MiB(1), kLong, Gpu(7))),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(WaitingLeases, AUserShortOfItsOwnBudgetBlocksNoOtherUser) {
  ASSERT_THAT(SetBudget(MiB(8)), IsOk());
  const LeaseId held = Lease(bob_, MiB(8));
  const Asked own = Wait(bob_, MiB(4)), next = Wait(bob_, MiB(2));
  EXPECT_TRUE(Waits(own) && Waits(next));
  EXPECT_THAT(node_.Lease(carol_, Gpu(0), MiB(4)).status(), IsOk());
  EXPECT_THAT(node_.Lease(bob_, Gpu(1), KiB(64)).status(),
              StatusIs(kExhausted, HasSubstr("job b is in front")));
  Pass(kLong - absl::Seconds(1));
  Free(bob_, held);
  EXPECT_THAT(Result(own), IsOk());
  EXPECT_THAT(Result(next), IsOk());
}

TEST_F(WaitingLeases, LeasesAreGrantedWhenTheirUserFreesMemoryOfAnotherPool) {
  ASSERT_THAT(SetBudget(MiB(8)), IsOk());
  const LeaseId held = Lease(bob_, MiB(8), Gpu(1));
  const Asked asked = Wait(bob_, MiB(4));
  EXPECT_TRUE(Waits(asked));
  Free(bob_, held);
  EXPECT_THAT(Result(asked), IsOk());
}

TEST_F(WaitingLeases, LeasesAreGrantedAfterABudgetReservationOrDrainChange) {
  const auto wakes = [&](const Asked& asked, auto change) {
    EXPECT_TRUE(Waits(asked));
    change();
    EXPECT_THAT(Result(asked), IsOk());
  };
  ASSERT_THAT(SetBudget(MiB(8)), IsOk());
  Lease(bob_, MiB(8));
  wakes(Wait(bob_, MiB(4)), [&] { ASSERT_THAT(SetBudget(MiB(12)), IsOk()); });

  const PoolId gpu = Gpu(1);
  Lease(alice_, MiB(4), gpu);
  ASSERT_THAT(Reserve(gpu, 3, MiB(8)), IsOk());
  wakes(Wait(alice_, MiB(8), kLong, gpu),
        [&] { ASSERT_THAT(Reserve(gpu, 3, Bytes(0)), IsOk()); });

  const LeaseId held = Lease(alice_, MiB(32), Host(0));
  const Asked drained = Wait(carol_, MiB(8), kLong, Host(0));
  ASSERT_THAT(node_.Change(DrainChange{Drain{"root", "", {}}}), IsOk());
  Free(alice_, held);
  EXPECT_TRUE(Waits(drained)) << "a drained node grants nothing";
  EXPECT_THAT(Result(Wait(bob_, MiB(1), kLong, Host(0))),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("drained by root")));
  wakes(drained, [&] { ASSERT_THAT(node_.Change(DrainChange{}), IsOk()); });
}

TEST_F(WaitingLeases, ASmallerBudgetRefusesALeaseThatBecameImpossible) {
  Lease(alice_, MiB(12));
  const Asked asked = Wait(bob_, MiB(8));
  ASSERT_THAT(SetBudget(MiB(4)), IsOk());
  EXPECT_THAT(Result(asked), StatusIs(kExhausted, HasSubstr("no wait")));
  EXPECT_EQ(Ended(WaitEnd::kRefused), 1u);
}

TEST_F(WaitingLeases, AReservedLeaseOvertakesOnlyOtherUsersLeases) {
  Lease(alice_, MiB(4));
  ASSERT_THAT(Reserve(Gpu(0), 3, MiB(4)), IsOk());
  const Asked head = Wait(bob_, MiB(12), 2 * kLong);
  Pass(kLong);
  EXPECT_THAT(node_.Lease(carol_, Gpu(0), MiB(2)).status(), IsOk());
  EXPECT_THAT(node_.Lease(carol_, Gpu(0), MiB(4)).status(),
              StatusIs(kExhausted, HasSubstr("in front")))
      << "only 2 MiB of the reservation are left";
  EXPECT_TRUE(Waits(Wait(carol_, MiB(6))));
  Pass(kLong / 2);
  EXPECT_THAT(node_.Lease(carol_, Gpu(0), MiB(2)).status(),
              StatusIs(kExhausted, HasSubstr("in front")));
  EXPECT_TRUE(Waits(head));
}

TEST_F(WaitingLeases, WaitingLeasesEndWithTheirSessionOrWhenGivenUp) {
  const LeaseId held = Lease(alice_, MiB(16));
  const Asked dies = Wait(bob_, MiB(12)), given_up = Wait(carol_, MiB(8)),
              stays = Wait(carol_, MiB(8));
  node_.Die(bob_);
  EXPECT_EQ(Ended(WaitEnd::kSessionEnded), 1u);
  const auto noted = node_.Ask(carol_, GiveUpRequest{given_up.request});
  ASSERT_TRUE(noted.has_value());
  EXPECT_TRUE(std::holds_alternative<NotedReply>(*noted));
  EXPECT_THAT(Result(given_up),
              StatusIs(absl::StatusCode::kCancelled,
                       HasSubstr("gave up waiting for 8 MiB of GPU 0")));
  EXPECT_TRUE(node_.Ask(carol_, GiveUpRequest{RequestId(5)}).has_value())
      << "giving up a request that does not wait is no error";
  Free(alice_, held);
  EXPECT_THAT(Result(stays), IsOk());
  EXPECT_TRUE(Waits(dies));
  EXPECT_TRUE(node_.core.waiting().empty());
}

TEST_F(WaitingLeases, WaitingLeasesAreLimitedPerUserAndInTotal) {
  Lease(alice_, MiB(16));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Waits(Wait(bob_, MiB(1))));
  EXPECT_THAT(Result(Wait(bob_, MiB(1))),
              StatusIs(kExhausted,
                       HasSubstr("user 2 (/a) has 3 leases waiting, and the "
                                 "limit is 3: let some be granted")));
  EXPECT_TRUE(Waits(Wait(carol_, MiB(1))));
  EXPECT_THAT(
      Result(Wait(carol_, MiB(1))),
      StatusIs(kExhausted, HasSubstr("limit of all users together is 5, of "
                                     "which 1 are kept for users with at most "
                                     "1")));
  EXPECT_EQ(node_.core.stats().waits_refused, 2u);
}

TEST_F(WaitingLeases, ALeaseIsShownWithItsPositionToItsUserAndOperators) {
  Lease(alice_, MiB(16));
  Wait(bob_, MiB(4));
  Wait(carol_, MiB(2));
  Pass(absl::Seconds(1));
  const absl::Time now = node_.clock.Now();
  const Snapshot all = node_.core.TakeSnapshot(nullptr, now);
  ASSERT_THAT(all.waiting, SizeIs(2));
  EXPECT_EQ(all.waiting[1].in_front, 1);
  EXPECT_EQ(all.waiting[1].elapsed, absl::Seconds(1));
  EXPECT_EQ(all.waiting[1].left, absl::Seconds(59));
  const Principal alice{1, "/a"}, carol{3, "/a"};
  EXPECT_THAT(node_.core.TakeSnapshot(&alice, now).waiting, IsEmpty());
  EXPECT_THAT(node_.core.TakeSnapshot(&carol, now).waiting, SizeIs(1));
}

// A rank reports its steps while its lease waits.
TEST_F(WaitingLeases, ARankThatWaitsMaySendManyRequests) {
  const LeaseId held = Lease(alice_, MiB(16));
  const Asked asked = Wait(bob_, MiB(12));
  for (uint64_t i = 0; i < 3 * RequestHistory::kWindow; ++i) {
    node_.Ask(bob_, StepReport{}, RequestId(2000 + i));
  }
  EXPECT_EQ(node_.core.session(bob_)->history.requests().size(),
            RequestHistory::kWindow);
  node_.Ask(bob_, LeaseRequest{Gpu(0), MiB(12), kLong}, asked.request);
  EXPECT_THAT(node_.core.waiting().waiters(), SizeIs(1))
      << "a request that is sent twice waits once";
  Free(alice_, held);
  EXPECT_THAT(Result(asked), IsOk());
}

}  // namespace
}  // namespace sluice::daemon
