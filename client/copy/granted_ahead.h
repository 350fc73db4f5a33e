// How far ahead of its copies a lane takes grants. Internal to the copy engine.
//
// A host that runs ahead may enqueue a whole step behind one kernel. Had all
// those copies their grants, the rank's limit would be used up by what cannot
// start, while other ranks' copies could. So while something but the link may
// hold one of them back, a grant is taken only while fewer than kMost granted
// copies have not ended: one that runs and one that follows it, or two that
// wait.
//
// Of copies that the link alone holds back, two are too few where they are over
// before the host looks again: naps are as long as the machine makes them, and
// on an H100 whose slices took 83 us two at a time were half of its link's
// speed. So where a nap was slept through to the end of all that ran, twice as
// many may be ahead, and half as many after kCalm waits that were not: as many
// as this machine's naps ask for, and on a slow link two still. They may start
// and are within the rank's limit, so others lose nothing.
//
// Thread safety: one thread at a time, whoever issues for the lane.
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
