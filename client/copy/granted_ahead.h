// Limits how many granted copies of a lane are in flight. Copies that only the
// link holds back count too. Internal to the copy engine.
//
// The number is at least two: one copy runs and one follows it. Two are too few
// if both end before the host looks again. A nap lasts as long as the machine
// makes it: on an H100 with slices of 83 us, two at a time reached half of the
// link's speed. So a nap in which all granted copies ended doubles the number,
// and kCalm waits without such a nap halve it. The number follows the machine's
// naps, and stays at two on a slow link.
//
// A lane without a limit (GrantGate::Limits) does not use this class.
//
// Thread safety: one thread at a time, the one that issues for the lane.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>

#include "client/copy/copy_engine.h"

namespace sluice::client {

class GrantedAhead {
 public:
  static constexpr size_t kLeast = 2;
  static constexpr size_t kMost = 64;
  static constexpr int kCalm = 512;

  using Nap = std::function<void(std::chrono::microseconds)>;

  GrantedAhead();
  explicit GrantedAhead(Nap nap) : nap_(std::move(nap)) {}

  // Returns whether a grant may be taken now. Never waits.
  bool HasRoom();
  // Naps until a grant may be taken. Setting `cancel` ends the wait.
  void AwaitRoom(const std::atomic<bool>& cancel);
  // Adds a granted copy; `end` is reached when it has ended.
  void Add(Ticket end) { running_.push_back(std::move(end)); }

 private:
  void Learn(bool ran_dry);

  const Nap nap_;
  std::deque<Ticket> running_;  // all on one stream, so they end in order
  size_t most_ = kLeast;
  int calm_ = 0;
};

}  // namespace sluice::client
