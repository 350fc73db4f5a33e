// Numbers tickets for the C ABI. Internal to client.
#pragma once

#include <cstdint>
#include <deque>

#include "client/copy/copy_engine.h"

namespace sluice::client {

// Numbers tickets from 1 upwards. Tickets are reached in about this order, so
// dropping reached ones at the front leaves about as many as are in flight.
// Thread safety: one thread at a time.
class TicketTable {
 public:
  // Drops at most two reached tickets, which keeps pace with additions. Call it
  // before marking compute: a copy that waits for the mark then runs after the
  // dropped tickets too.
  void DropReached() {
    for (int i = 0; i < 2 && !open_.empty() && open_.front().done(); ++i) {
      open_.pop_front();
      ++first_;
    }
  }

  uint64_t Add(Ticket ticket) {
    open_.push_back(std::move(ticket));
    return first_ + open_.size() - 1;
  }

  // Returns the ticket; 0, dropped and unknown numbers count as reached.
  Ticket Find(uint64_t number) const {
    const uint64_t index = number - first_;
    return number >= first_ && index < open_.size() ? open_[index] : Ticket();
  }

 private:
  uint64_t first_ = 1;
  std::deque<Ticket> open_;
};

}  // namespace sluice::client
