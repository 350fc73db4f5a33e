#include "client/copy/granted_ahead.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace sluice::client {
namespace {

// Who waits is late by at most as long as it has waited, and by the last of
// these; meanwhile the copy behind the one that ended is running.
constexpr std::chrono::microseconds kFirstNap{5};
constexpr std::chrono::microseconds kLastNap{100};

}  // namespace

bool GrantedAhead::HasRoom() {
  while (!running_.empty() && running_.front().done()) running_.pop_front();
  return running_.size() < kMost;
}

void GrantedAhead::AwaitRoom(const std::atomic<bool>& cancel) {
  for (auto nap = kFirstNap; !HasRoom() && !cancel;
       nap = std::min(2 * nap, kLastNap)) {
    std::this_thread::sleep_for(nap);
  }
}

}  // namespace sluice::client
