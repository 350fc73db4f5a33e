// When copies really started and ended, for the report. Internal to the copy
// engine.
//
// Driver events carry no time, and a host wait would be a call the chunk loop
// must not make. So a thread of its own polls the oldest pending record of
// each direction; streams are in order, so no other can be reached before it.
//
// Thread safety: Add from issuing threads, Take from any.
#pragma once

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "client/copy/copy_engine.h"
#include "client/copy/ticket_state.h"
#include "proto/base/mutex.h"

namespace sluice::client {

class CopyTimeline {
 public:
  CopyTimeline();
  ~CopyTimeline();

  // `record` with its label, direction, size and issue time; reached tickets
  // of `start` and `end` tell the rest.
  void Add(const CopyRecord& record, std::shared_ptr<TicketAccess::State> start,
           std::shared_ptr<TicketAccess::State> end);
  // Blocks until every record that was added has ended.
  void AwaitAll();
  // What has ended since the last call.
  std::vector<CopyRecord> Take();

 private:
  struct Pending {
    CopyRecord record;
    Ticket start, end;
  };

  void Run();
  bool Poll(std::deque<Pending>& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Empty() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return pending_[0].empty() && pending_[1].empty();
  }

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Pending> pending_[2] ABSL_GUARDED_BY(mutex_);  // per direction
  std::vector<CopyRecord> ended_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace sluice::client
