#include "client/copy/granted_ahead.h"

#include <algorithm>
#include <thread>

namespace sluice::client {
namespace {

// Naps double up to kLastNap, so a lane notices that a copy has ended with a
// delay of at most about the time that it has already waited. Meanwhile the
// link runs the other granted copies.
constexpr std::chrono::microseconds kFirstNap{5};
constexpr std::chrono::microseconds kLastNap{100};

}  // namespace

GrantedAhead::GrantedAhead()
    : GrantedAhead([](auto nap) { std::this_thread::sleep_for(nap); }) {}

bool GrantedAhead::HasRoom() {
  while (!running_.empty() && running_.front().done()) running_.pop_front();
  return running_.size() < most_;
}

void GrantedAhead::AwaitRoom(const std::atomic<bool>& cancel) {
  if (HasRoom()) return;
  auto nap = kFirstNap;
  do {
    if (cancel) return;
    nap_(nap);
    nap = std::min(2 * nap, kLastNap);
  } while (!HasRoom());
  Learn(running_.empty());
}

void GrantedAhead::Learn(bool ran_dry) {
  if (ran_dry) {
    most_ = std::min(2 * most_, kMost);
  } else if (++calm_ < kCalm) {
    return;
  } else {
    most_ = std::max(most_ / 2, kLeast);
  }
  calm_ = 0;
}

}  // namespace sluice::client
