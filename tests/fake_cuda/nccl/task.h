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

// The bytes that it reads, and those that it then writes; of size 0: none.
struct Buffers {
  fake_cuda::Access read, written;
};
Buffers BuffersOf(const Issue& issue, Place place);

// Returns what is wrong with an operation by itself; empty: nothing.
std::string CheckArguments(const Issue& issue, Place place);
// Checks that no two operations of a group touch the same bytes if one writes,
// except what NCCL calls in place.
std::string CheckApart(const std::vector<Issue>& group, Place place);

// Runs a group, given the CPU's views of each operation's buffers: two per
// operation, in the order of BuffersOf. False: it was ended before it was
// complete.
bool Perform(Board& board, const std::vector<Issue>& group, Place place,
             const fake_cuda::Views& views,
             const std::function<bool()>& stopped);

}  // namespace sluice::fake_nccl
