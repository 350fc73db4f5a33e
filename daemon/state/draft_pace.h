// Decides how much of a checkpoint an event drafts beside its own record.
//
// Clients that send requests in between wait for it, and requests come closely
// one after another: what is put off from one event to the next few is waited
// for all the same. So the draft is spread over as many events as there is room
// for their records, and grows with these: a node that changes little drafts
// little.
//
// Pure policy. Thread safety: values.
#pragma once

#include <algorithm>
#include <cstddef>

namespace sluice::daemon {

class DraftPace {
 public:
  // The most beside one event: a large record's share is spread over later
  // ones.
  static constexpr size_t kMostRows = 256;

  DraftPace() = default;
  // `rows` are to be drafted by the time that records have taken `room` bytes.
  DraftPace(size_t rows, size_t room) : rows_(rows), room_(room) {}

  // How many rows to draft beside a record of that many bytes: at least one, so
  // that the draft ends.
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
