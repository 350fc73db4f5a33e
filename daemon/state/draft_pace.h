// How much of a checkpoint an event drafts beside its own record.
//
// Whoever sends requests meanwhile waits for it, and those come closely one
// behind another: what is put off from one event to the next few is waited for
// all the same. So the draft is spread over as many events as there is room for
// their records, and grows with these: a node that changes little drafts
// little.
//
// Pure policy. Thread safety: values.
#pragma once

#include <algorithm>
#include <cstddef>

namespace sluice::daemon {

class DraftPace {
 public:
  // Beside one event: a large record's share is spread over those behind it.
  static constexpr size_t kMostRows = 256;

  DraftPace() = default;
  // `rows` are to be drafted by the time that records have taken `room` bytes.
  DraftPace(size_t rows, size_t room) : rows_(rows), room_(room) {}

  // How many rows to draft beside a record that has taken so many bytes: at
  // least one, so that it ends.
  size_t RowsBeside(size_t record) {
    taken_ += record;
    const size_t due = room_ == 0 ? rows_ : rows_ * taken_ / room_;
    const size_t rows =
        std::clamp<size_t>(due > drafted_ ? due - drafted_ : 0, 1, kMostRows);
    drafted_ += rows;
    return rows;
  }

 private:
  size_t rows_ = 0;
  size_t room_ = 0;
  size_t taken_ = 0;    // of the room, since it began
  size_t drafted_ = 0;  // rows
};

}  // namespace sluice::daemon
