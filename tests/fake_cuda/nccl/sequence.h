// The operations that this process's ranks on one GPU have issued, in the order
// of their issue over all communicators, and whether the other ranks agree.
#pragma once

#include <string>
#include <vector>

#include "tests/fake_cuda/nccl/board.h"
#include "tests/fake_cuda/nccl/record.h"

namespace sluice::fake_nccl {

// A rank's place in a communicator. `shared` must outlive the Hold.
struct Hold {
  Shared* shared = nullptr;
  Place place;
};

// Thread safety: none; communicator.cc locks all Sequences with one mutex.
class Sequence {
 public:
  // Returns false if there already are kMaxCommunicators holds.
  bool Add(const Hold& hold);
  void Remove(const Hold& hold);

  // Records a group's operations for the other ranks. Returns how they disagree
  // with the operations that the others have issued so far, or an empty string.
  std::string Publish(const Hold& in, const std::vector<What>& group);

 private:
  // A rank is recognised in other communicators by its process and GPU.
  struct Identity {
    pid_t process = 0;
    int device = -1;
  };

  static Position PositionIn(const Hold& hold, Identity peer);
  Record RecordOf(const What& what, Identity peer) const;
  // Checks the operations that others have issued and this rank has not.
  // Returns a message if this rank is already past the position of one.
  std::string FindPassed() const;
  std::string FindPassed(const Hold& hold) const;

  std::vector<Hold> holds_;
};

// Returns whether another rank is so far behind that this operation cannot be
// recorded yet.
bool IsFull(const Hold& in, const What& what);

}  // namespace sluice::fake_nccl
