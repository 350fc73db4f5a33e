// How far ahead of its copies a lane takes grants. Internal to the copy engine.
//
// A host that runs ahead may enqueue a whole step behind one kernel. Had all
// those copies their grants, the rank's limit would be used up by what cannot
// start, while other ranks' copies could. So a grant is taken only while fewer
// than kMost granted copies have not ended: one that runs and one that follows
// it without a gap, or two that wait.
//
// Thread safety: one thread at a time, whoever issues for the lane.
#pragma once

#include <atomic>
#include <deque>
#include <utility>

#include "client/copy/copy_engine.h"

namespace sluice::client {

class GrantedAhead {
 public:
  static constexpr size_t kMost = 2;

  // May a grant be taken now? Never waits.
  bool HasRoom();
  // Naps until one may be taken; a true `cancel` ends the wait.
  void AwaitRoom(const std::atomic<bool>& cancel);
  // `end` is reached when a copy with a grant has ended.
  void Add(Ticket end) { running_.push_back(std::move(end)); }

 private:
  std::deque<Ticket> running_;  // of one stream, which is in order
};

}  // namespace sluice::client
