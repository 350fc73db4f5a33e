#include "daemon/quota/fair_queue.h"

#include <string>

#include "gtest/gtest.h"

namespace sluice::daemon {
namespace {

using Queue = FairQueue<uint32_t, std::string>;

// Pops all entries, each of which takes as many seconds as its text is long.
// Returns their first letters.
std::string Order(Queue& queue) {
  std::string order;
  while (auto next = queue.Pop()) {
    order += next->second[0];
    queue.Spent(next->first, absl::Seconds(next->second.size()));
  }
  return order;
}

TEST(FairQueue, ManyEntriesOfOneUserDoNotDelayAnother) {
  Queue queue;
  for (int i = 0; i < 4; ++i) queue.Push(1, "a");
  for (int i = 0; i < 2; ++i) queue.Push(2, "b");
  EXPECT_EQ(Order(queue), "ababaa");
}

TEST(FairQueue, LongEntriesCountByTheirSeconds) {
  Queue queue;
  for (int i = 0; i < 2; ++i) queue.Push(1, "aaaa");
  for (int i = 0; i < 5; ++i) queue.Push(2, "b");
  EXPECT_EQ(Order(queue), "abbbbab");
}

TEST(FairQueue, UsersTakeTurnsEvenIfNothingTakesTime) {
  Queue queue;
  for (const uint32_t uid : {1, 1, 1, 2, 2, 3}) queue.Push(uid, "a");
  std::string order;
  while (auto next = queue.Pop()) order += std::to_string(next->first);
  EXPECT_EQ(order, "123121");
}

TEST(FairQueue, AUserGainsNothingByBeingAway) {
  Queue queue;
  for (int i = 0; i < 9; ++i) queue.Push(1, "a");
  for (int i = 0; i < 6; ++i) queue.Spent(queue.Pop()->first, absl::Seconds(1));
  for (int i = 0; i < 3; ++i) queue.Push(2, "b");
  // User 2 starts level with user 1's last popped entry, not 6 s ahead.
  EXPECT_EQ(Order(queue), "bababa");
}

TEST(FairQueue, AnEmptyQueueForgetsAllUsers) {
  Queue queue;
  for (uint32_t uid = 1; uid <= 1000; ++uid) {
    queue.Push(uid, "a");
    queue.Spent(queue.Pop()->first, absl::Milliseconds(1));
  }
  EXPECT_EQ(queue.users(), 0u);
}

TEST(FairQueue, EntriesAreRemovedAndRejectedUsersSkipped) {
  Queue queue;
  queue.Push(1, "a");
  queue.Push(1, "b");
  queue.Push(2, "c");
  EXPECT_EQ(queue.Remove([](const auto& each) { return each == "a"; }).size(),
            1u);
  EXPECT_EQ(queue.waiting(1), 1u);
  EXPECT_EQ(queue.waiting(3), 0u);
  EXPECT_EQ(queue.Pop([](uint32_t uid) { return uid == 2; })->second, "c");
  EXPECT_FALSE(queue.Pop([](uint32_t uid) { return uid == 2; }));
  EXPECT_EQ(queue.Pop()->second, "b");
  EXPECT_EQ(queue.waiting(), 0u);
}

}  // namespace
}  // namespace sluice::daemon
