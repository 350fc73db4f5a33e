// One rank's part of an operation: transfers to and from other ranks, all at
// the same time, as NCCL's channels do within a group.
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

// Runs the transfers until the other side has taken all that was sent, and all
// that is received is here. False: `stopped`, or the communicator has failed. A
// send does not end before its bytes are taken, so code that relies on NCCL's
// buffers hangs here.
bool Exchange(Board& board, int rank, std::vector<Transfer> transfers,
              const std::function<bool()>& stopped);

}  // namespace sluice::fake_nccl
