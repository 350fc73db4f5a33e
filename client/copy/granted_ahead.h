// Limits how many granted copies of a lane have not ended: the one that the
// link carries and those that wait behind it. Internal to the copy engine, for
// lanes with a limit (GrantGate::Limits).
//
// The limit is at least two: one copy runs and one follows it. Two are too few
// if both end before the host looks again: on an H100, slices of 83 us reached
// half of the link's speed. So a nap in which all granted copies ended doubles
// the limit, and kCalm waits without such a nap halve it. Thread safety: one
// thread at a time, the one that issues for the lane.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "client/copy/copy_engine.h"

namespace sluice::client {

class GrantedAhead {
 public:
  static constexpr size_t kLeast = 2;
  static constexpr size_t kMost = 64;
  static constexpr int kCalm = 512;

  using Nap = std::function<void(std::chrono::microseconds)>;

  explicit GrantedAhead(
      Nap nap = [](auto time) { std::this_thread::sleep_for(time); })
      : nap_(std::move(nap)) {}

  bool HasRoom() {
    while (!running_.empty() && running_.front().done()) running_.pop_front();
    return running_.size() < most_;
  }
  // Naps until a grant may be taken. Setting `cancel` ends the wait.
  //
  // Naps double, so a lane notices that a copy has ended with a delay of at
  // most about the time that it has already waited. Meanwhile the link runs the
  // other granted copies.
  void AwaitRoom(const std::atomic<bool>& cancel) {
    if (HasRoom()) return;
    std::chrono::microseconds nap{5};
    do {
      if (cancel) return;
      nap_(nap);
      nap = std::min(2 * nap, std::chrono::microseconds{100});
    } while (!HasRoom());
    if (running_.empty()) {  // the lane ran dry
      most_ = std::min(2 * most_, kMost);
    } else if (++calm_ < kCalm) {
      return;
    } else {
      most_ = std::max(most_ / 2, kLeast);
    }
    calm_ = 0;
  }
  // Adds a granted copy; `end` is reached when the copy has ended.
  void Add(Ticket end) { running_.push_back(std::move(end)); }

 private:
  const Nap nap_;
  std::deque<Ticket> running_;  // all on one stream, so they end in order
  size_t most_ = kLeast;
  int calm_ = 0;
};

}  // namespace sluice::client
