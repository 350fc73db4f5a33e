// Tests that principals, not connections, share the loop's time.
#include "daemon/quota/turns.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::daemon {
namespace {

const Principal kFirst{1, ""}, kSecond{2, ""};

// Guards against turns by connection: 260 connections would have 260 turns.
TEST(Turns, AFloodFromManySessionsDelaysOthersByOneRequest) {
  Turns turns;
  for (uint64_t i = 1; i <= 260; ++i) turns.Add(kFirst, SessionId(i));
  ASSERT_TRUE(turns.Next().has_value());
  turns.Spent(absl::Milliseconds(3));
  turns.Add(kSecond, SessionId(999));
  EXPECT_EQ(turns.Next(), SessionId(999));
}

TEST(Turns, TimeIsSharedEvenlyAtAnyCostOfARequest) {
  Turns turns;
  turns.Add(kFirst, SessionId(1));
  turns.Add(kSecond, SessionId(2));
  absl::Duration a, b;
  for (int i = 0; i < 10'000; ++i) {
    const SessionId id = *turns.Next();
    const bool first = id == SessionId(1);
    const absl::Duration cost =
        first ? absl::Milliseconds(3) : absl::Microseconds(20);
    (first ? a : b) += cost;
    turns.Add(first ? kFirst : kSecond, id);  // more requests wait
    turns.Spent(cost);
  }
  EXPECT_LE(a - b, absl::Milliseconds(3));
  EXPECT_LE(b - a, absl::Milliseconds(3));
}

TEST(Turns, SessionsOfOnePrincipalTakeTurns) {
  Turns turns;
  for (uint64_t i = 1; i <= 3; ++i) turns.Add(kFirst, SessionId(i));
  turns.Add(kFirst, SessionId(1));  // ignored, as it is queued already
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_EQ(turns.Next(), SessionId(i));
  EXPECT_EQ(turns.Next(), std::nullopt);
}

TEST(Turns, AnIdlePrincipalGainsNoTime) {
  Turns turns;
  turns.Add(kFirst, SessionId(1));
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(turns.Next(), SessionId(1));
    turns.Add(kFirst, SessionId(1));
    turns.Spent(absl::Milliseconds(1));
  }
  turns.Add(kSecond, SessionId(2));
  int b = 0;
  for (int i = 0; i < 20; ++i) {
    const SessionId id = *turns.Next();
    b += id == SessionId(2) ? 1 : 0;
    turns.Add(id == SessionId(2) ? kSecond : kFirst, id);
    turns.Spent(absl::Milliseconds(1));
  }
  EXPECT_LE(b, 11);
}

TEST(Turns, SessionsThatDoNotWaitTakeNoMemory) {
  Turns turns;
  std::mt19937 random(1);
  std::vector<SessionId> there;
  for (int i = 0; i < 20'000; ++i) {
    const SessionId id(random() % 50 + 1);
    const Principal who{static_cast<uint32_t>(id.value() % 7), ""};
    switch (random() % 4) {
      case 0:
      case 1:
        turns.Add(who, id);
        break;
      case 2:
        turns.Remove(id);
        break;
      default:
        if (turns.Next()) turns.Spent(absl::Microseconds(random() % 100));
    }
    ASSERT_LE(turns.principals(), 7u);
  }
  while (turns.Next()) turns.Spent(absl::Microseconds(1));
  EXPECT_TRUE(turns.empty());
  EXPECT_EQ(turns.principals(), 0u);
}

}  // namespace
}  // namespace sluice::daemon
