// One rank's part of a group of operations: its transfers to and from other
// ranks, which run at the same time, as NCCL's channels do.
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

// Runs the transfers until the peers have taken all sent bytes and all received
// bytes are here. Returns false if `stopped` returns true or the communicator
// fails. A send does not end before its bytes are taken, so code that relies on
// NCCL's buffers hangs here.
bool Exchange(Board& board, int rank, std::vector<Transfer> transfers,
              const std::function<bool()>& stopped);

}  // namespace sluice::fake_nccl
