#include "client/copy/grant_gate.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"

namespace sluice::client {
namespace {

constexpr int kSlot = 3;

class GrantGateTest : public ::testing::Test {
 protected:
  GrantGateTest() { Beat(); }

  void Beat() {
    limits_.heartbeat_ns =
        static_cast<uint64_t>(absl::ToUnixNanos(clock_.Now()));
  }
  void SetLimit(int direction, uint64_t bytes) {
    limits_.slots[kSlot].limit_bytes[direction] = bytes;
  }
  uint64_t used(int direction) const {
    return use_.slot.used_bytes[direction].load();
  }
  GrantGate Gate() { return GrantGate(&limits_, kSlot, &use_, &clock_); }
  // Runs Acquire on a thread. `Returned` waits at most `within` for Acquire
  // to return.
  class Waiter {
   public:
    Waiter(GrantGate& gate, int direction, Bytes size,
           const std::atomic<bool>* cancel = nullptr)
        : thread_([=, this, &gate] {
            gate.Acquire(direction, size, cancel);
            returned_ = true;
          }) {}
    ~Waiter() { thread_.join(); }
    bool Returned(std::chrono::milliseconds within) const {
      const auto end = std::chrono::steady_clock::now() + within;
      while (!returned_ && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      return returned_;
    }

   private:
    std::atomic<bool> returned_{false};
    std::thread thread_;
  };

  static constexpr std::chrono::milliseconds kShort{30};
  static constexpr std::chrono::milliseconds kLong{10'000};

  testing::FakeClock clock_;
  GrantLimits limits_ = {};
  GrantUse use_ = {};
};

TEST_F(GrantGateTest, BytesUnderTheLimitPassAndAreCounted) {
  SetLimit(kH2d, 100);
  GrantGate gate = Gate();
  EXPECT_EQ(gate.Acquire(kH2d, Bytes(60)), absl::ZeroDuration());
  EXPECT_EQ(gate.Acquire(kH2d, Bytes(40)), absl::ZeroDuration());
  EXPECT_EQ(used(kH2d), 100u);
  EXPECT_EQ(used(kD2h), 0u);
}

TEST_F(GrantGateTest, TryAcquireTakesAllOrNothing) {
  SetLimit(kH2d, 100);
  GrantGate gate = Gate();
  EXPECT_TRUE(gate.TryAcquire(kH2d, Bytes(60)));
  EXPECT_FALSE(gate.TryAcquire(kH2d, Bytes(41)));
  EXPECT_EQ(used(kH2d), 60u);
  EXPECT_TRUE(gate.TryAcquire(kH2d, Bytes(40)));
  EXPECT_EQ(used(kH2d), 100u);
}

TEST_F(GrantGateTest, BytesBeyondTheLimitWaitUntilItIsRaised) {
  SetLimit(kD2h, 100);
  GrantGate gate = Gate();
  Waiter waiter(gate, kD2h, Bytes(101));
  EXPECT_FALSE(waiter.Returned(kShort));
  SetLimit(kD2h, 101);
  EXPECT_TRUE(waiter.Returned(kLong));
}

TEST_F(GrantGateTest, AnotherSlotsLimitDoesNotCount) {
  limits_.slots[kSlot + 1].limit_bytes[kH2d] = 1000;
  GrantGate gate = Gate();
  Waiter waiter(gate, kH2d, Bytes(1));
  EXPECT_FALSE(waiter.Returned(kShort));
  SetLimit(kH2d, 1);
  EXPECT_TRUE(waiter.Returned(kLong));
}

TEST_F(GrantGateTest, NothingWaitsForADeadDaemon) {
  GrantGate gate = Gate();
  Waiter waiter(gate, kH2d, Bytes(1'000'000));
  EXPECT_FALSE(waiter.Returned(kShort));
  clock_.Advance(kGrantStaleAfter);
  EXPECT_FALSE(waiter.Returned(kShort)) << "exactly 20 ms is not stale";
  clock_.Advance(absl::Nanoseconds(1));
  EXPECT_TRUE(waiter.Returned(kLong));
  EXPECT_EQ(used(kH2d), 1'000'000u);
}

// Guards against a rank that takes the whole link when its daemon is 20 ms
// late.
TEST_F(GrantGateTest, ALateDaemonsLastRateIsKeptForHalfASecond) {
  limits_.slots[kSlot].bytes_per_second[kH2d] = 1000;
  GrantGate gate = Gate();
  clock_.Advance(kGrantStaleAfter + absl::Nanoseconds(1));
  gate.Acquire(kH2d, Bytes(100));  // the first call passes at once
  {
    Waiter waiter(gate, kH2d, Bytes(1'000'000));
    clock_.Advance(absl::Milliseconds(98));
    EXPECT_FALSE(waiter.Returned(kShort));
    clock_.Advance(absl::Milliseconds(3));
    EXPECT_TRUE(waiter.Returned(kLong));
  }
  // At the last rate, this call would wait 1,000 s behind the million bytes.
  Waiter waiter(gate, kH2d, Bytes(1));
  clock_.Advance(kGrantPacedFor - absl::Milliseconds(102));
  EXPECT_FALSE(waiter.Returned(kShort));
  clock_.Advance(absl::Milliseconds(2));
  EXPECT_TRUE(waiter.Returned(kLong));
}

TEST_F(GrantGateTest, BytesCopiedWithoutADaemonDoNotCountAgainstTheRank) {
  GrantGate gate = Gate();
  clock_.Advance(absl::Seconds(1));
  gate.Acquire(kH2d, Bytes(1'000'000));
  Beat();  // the daemon is back
  SetLimit(kH2d, 10);
  EXPECT_EQ(gate.Acquire(kH2d, Bytes(10)), absl::ZeroDuration());
  Waiter waiter(gate, kH2d, Bytes(1));
  EXPECT_FALSE(waiter.Returned(kShort));
  SetLimit(kH2d, 11);
  EXPECT_TRUE(waiter.Returned(kLong));
}

TEST_F(GrantGateTest, DetachEndsAllWaits) {
  GrantGate gate = Gate();
  Waiter waiter(gate, kD2h, Bytes(5));
  EXPECT_FALSE(waiter.Returned(kShort));
  gate.Detach();
  EXPECT_TRUE(waiter.Returned(kLong));
}

TEST_F(GrantGateTest, ACancelledWaitReturns) {
  std::atomic<bool> cancel{false};
  GrantGate gate = Gate();
  Waiter waiter(gate, kD2h, Bytes(5), &cancel);
  EXPECT_FALSE(waiter.Returned(kShort));
  cancel = true;
  EXPECT_TRUE(waiter.Returned(kLong));
}

TEST_F(GrantGateTest, ADueTimeStaysInTheUsePageUntilForgetDue) {
  SetLimit(kD2h, 1000);
  GrantGate gate = Gate();
  gate.Acquire(kD2h, Bytes(100));
  const absl::Time due = gate.now() + absl::Milliseconds(7);
  gate.TellDue(kD2h, Bytes(40), due);
  gate.Acquire(kD2h, Bytes(30));
  EXPECT_EQ(use_.slot.due_bytes[kD2h].load(), 140u);
  EXPECT_EQ(use_.slot.due_ns[kD2h].load(),
            static_cast<uint64_t>(absl::ToUnixNanos(due)));
  EXPECT_EQ(use_.slot.due_bytes[kH2d].load(), 0u);
  gate.TellDue(kD2h, Bytes(10), absl::InfinitePast());
  EXPECT_EQ(use_.slot.due_bytes[kD2h].load(), 140u);
  EXPECT_EQ(use_.slot.due_ns[kD2h].load(), 0u);
  gate.ForgetDue(kD2h);
  EXPECT_EQ(use_.slot.due_bytes[kD2h].load(), 0u);
}

TEST_F(GrantGateTest, ConcurrentThreadsGetTheWholeLimit) {
  constexpr int kThreads = 4, kEach = 1000;
  SetLimit(kH2d, kThreads * kEach);
  GrantGate gate = Gate();
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&gate] {
        for (int k = 0; k < kEach; ++k) {
          EXPECT_EQ(gate.Acquire(kH2d, Bytes(1)), absl::ZeroDuration());
        }
      });
    }
  }
  EXPECT_EQ(used(kH2d), uint64_t{kThreads * kEach});
}

}  // namespace
}  // namespace sluice::client
