// How far ahead of its copies a lane takes grants. Internal to the copy engine.
//
// A host that runs ahead may enqueue a whole step behind one kernel. Had all
// those copies their grants, the rank's limit would be used up by what cannot
// start, while other ranks' copies could. So while something but the link may
// hold one of them back, a grant is taken only while fewer than kMost granted
// copies have not ended: one that runs and one that follows it, or two that
// wait.
//
// If only the link holds copies back, two are too few when they end before the
// host looks again: a nap lasts as long as the machine makes it, and on an H100
// with slices of 83 us two at a time reached half of the link's speed. So a nap
// in which all granted copies ended doubles how many may be ahead, and kCalm
// waits without one halve it: as many as this machine's naps need, and two on a
// slow link. These copies may start and are within the rank's limit, so other
// ranks lose nothing.
//
// Where nothing is limited (GrantGate::Limits) a lane does not ask.
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
  static constexpr size_t kMost = 2;
  static constexpr size_t kMostReady = 64;  // that the link alone holds back
  static constexpr int kCalm = 512;

  using Nap = std::function<void(std::chrono::microseconds)>;

  GrantedAhead();
  explicit GrantedAhead(Nap nap) : nap_(std::move(nap)) {}

  // May a grant be taken now? `held`: something but the link may hold the copy
  // back. Never waits.
  bool HasRoom(bool held);
  // Naps until one may be taken; a true `cancel` ends the wait.
  void AwaitRoom(bool held, const std::atomic<bool>& cancel);
  // `end` is reached when a copy with a grant has ended.
  void Add(Ticket end, bool held) {
    running_.push_back({std::move(end), held});
  }

 private:
  struct Copy {
    Ticket end;
    bool held;
  };

  bool AnyHeld() const;
  void Learn(bool ran_dry);

  const Nap nap_;
  std::deque<Copy> running_;  // of one stream, which is in order
  size_t most_ready_ = kMost;
  int calm_ = 0;
};

}  // namespace sluice::client
