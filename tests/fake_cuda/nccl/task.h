// The work of an operation on its rank: its buffers, its transfers, and the
// processing of received bytes.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/nccl/board.h"
#include "tests/fake_cuda/nccl/record.h"

namespace sluice::fake_nccl {

// An operation as its caller issued it.
struct Issue {
  What what;
  const void* send = nullptr;
  void* receive = nullptr;
};

// The bytes that an operation reads and writes; a size of 0 means none.
struct Buffers {
  fake_cuda::Access read, written;
};
Buffers BuffersOf(const Issue& issue, Place place);

// Returns what is wrong with one operation's arguments, or an empty string.
std::string CheckArguments(const Issue& issue, Place place);
// Returns an error if bytes that an operation writes are also in another buffer
// of the group, except in the forms that NCCL calls in place.
std::string CheckApart(const std::vector<Issue>& group, Place place);

// Runs a group. `views` are the CPU's views of its buffers: two per operation,
// as in Buffers. Returns false if the group was stopped or failed.
bool Perform(Board& board, const std::vector<Issue>& group, Place place,
             const fake_cuda::Views& views,
             const std::function<bool()>& stopped);

}  // namespace sluice::fake_nccl
