#include "client/copy/granted_ahead.h"

#include <algorithm>
#include <thread>

namespace sluice::client {
namespace {

// Naps double: a waiting lane is late by at most the time it has waited, and by
// at most kLastNap, while the copies behind the one that ended are running.
constexpr std::chrono::microseconds kFirstNap{5};
constexpr std::chrono::microseconds kLastNap{100};

}  // namespace

GrantedAhead::GrantedAhead()
    : GrantedAhead([](auto nap) { std::this_thread::sleep_for(nap); }) {}

bool GrantedAhead::AnyHeld() const {
  return std::ranges::any_of(running_, &Copy::held);
}

bool GrantedAhead::HasRoom(bool held) {
  while (!running_.empty() && running_.front().end.done()) running_.pop_front();
  return running_.size() < kMost ||
         (running_.size() < most_ready_ && !held && !AnyHeld());
}

void GrantedAhead::AwaitRoom(bool held, const std::atomic<bool>& cancel) {
  if (HasRoom(held)) return;
  const bool by_link = !held && !AnyHeld();
  auto nap = kFirstNap;
  do {
    if (cancel) return;
    nap_(nap);
    nap = std::min(2 * nap, kLastNap);
  } while (!HasRoom(held));
  if (by_link) Learn(running_.empty());
}

void GrantedAhead::Learn(bool ran_dry) {
  if (ran_dry) {
    most_ready_ = std::min(2 * most_ready_, kMostReady);
  } else if (++calm_ < kCalm) {
    return;
  } else {
    most_ready_ = std::max(most_ready_ / 2, kMost);
  }
  calm_ = 0;
}

}  // namespace sluice::client
