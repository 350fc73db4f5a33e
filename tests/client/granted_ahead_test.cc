#include "client/copy/granted_ahead.h"

#include <memory>
#include <vector>

#include "client/copy/ticket_state.h"
#include "gtest/gtest.h"

namespace sluice::client {
namespace {

// Drives a GrantedAhead with copies that end while AwaitRoom naps.
class GrantedAheadTest : public ::testing::Test {
 protected:
  void Add() {
    ends_.push_back(std::make_shared<TicketAccess::State>(
        nullptr, device::Event(), device::Stream(), /*number=*/0));
    ahead_.Add(TicketAccess::Make(ends_.back()));
  }
  // Adds copies until there is no room. Returns how many it added.
  size_t Fill() {
    size_t added = 0;
    for (; ahead_.HasRoom(); ++added) Add();
    return added;
  }
  void End(size_t count) {
    for (; count > 0; --count)
      ends_[ended_++]->Set(TicketAccess::State::kFailed);
  }
  // Waits for room. `count` copies end during the first nap.
  void Await(size_t count) {
    end_in_nap_ = count;
    ahead_.AwaitRoom(never_);
  }
  size_t running() const { return ends_.size() - ended_; }

  const std::atomic<bool> never_{false};
  size_t end_in_nap_ = 0;
  size_t ended_ = 0;
  std::vector<std::shared_ptr<TicketAccess::State>> ends_;
  GrantedAhead ahead_{[this](auto) { End(std::exchange(end_in_nap_, 0)); }};
};

TEST_F(GrantedAheadTest, TwoCopiesAreGrantedAheadAtFirst) {
  EXPECT_EQ(Fill(), 2u);
}

TEST_F(GrantedAheadTest, ALaneThatRanDryDoublesItsCopiesAhead) {
  for (const size_t most : {2, 4, 8, 16, 32, 64, 64}) {
    EXPECT_EQ(Fill(), most);
    Await(running());
  }
}

TEST_F(GrantedAheadTest, ALaneThatDidNotRunDryAddsNoCopiesAhead) {
  Fill();
  for (int i = 0; i < 10; ++i) {
    Await(1);
    EXPECT_EQ(Fill(), 1u);
  }
}

TEST_F(GrantedAheadTest, ManyWaitsWithoutRunningDryHalveTheCopiesAhead) {
  Fill();
  Await(running());
  EXPECT_EQ(Fill(), 4u);
  for (int i = 0; i < GrantedAhead::kCalm; ++i) {
    if (i > 0) Fill();
    Await(1);
  }
  End(running());
  EXPECT_EQ(Fill(), 2u);
}

TEST_F(GrantedAheadTest, ACancelledWaitEnds) {
  Fill();
  ahead_.AwaitRoom(std::atomic<bool>(true));
  EXPECT_EQ(running(), 2u);
}

}  // namespace
}  // namespace sluice::client
