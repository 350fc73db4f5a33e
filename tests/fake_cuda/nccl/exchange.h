// One rank's part of an operation: bytes to and from others, all at once, as
// NCCL's channels do within a group.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "tests/fake_cuda/nccl/board.h"

namespace sluice::fake_nccl {

struct Transfer {
  int peer = 0;
  bool sends = true;
  std::byte* bytes = nullptr;
  size_t size = 0;
};

// Moves until all is there: what was sent is taken by the other side, what is
// received is here. False: `stopped`, or the communicator has failed. A send
// does not end before it is taken: code that relies on NCCL's buffers hangs
// here.
bool Exchange(Board& board, int rank, std::vector<Transfer> transfers,
              const std::function<bool()>& stopped);

}  // namespace sluice::fake_nccl
