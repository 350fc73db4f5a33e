// How much of a checkpoint an event drafts beside its own record.
//
// Whoever sends requests meanwhile waits for it, and those come closely one
// behind another: what is put off from one event to the next few is waited for
// all the same. So the draft is spread over as many events as there is room for
// their records, and grows with these: a node that changes little drafts
// little.
//
// Pure policy. Thread safety: immutable.
#pragma once

#include <cstddef>

namespace sluice::daemon {

class DraftPace {
 public:
  DraftPace() = default;
  // `rows` are to be drafted before records take `room` bytes.
  DraftPace(size_t rows, size_t room) : rows_(rows), room_(room) {}

  // Rows beside a record of so many bytes: at least one, so that it ends.
  size_t RowsBeside(size_t record) const {
    return 1 + (room_ == 0 ? rows_ : rows_ * record / room_);
  }

 private:
  size_t rows_ = 0;
  size_t room_ = 0;
};

}  // namespace sluice::daemon
