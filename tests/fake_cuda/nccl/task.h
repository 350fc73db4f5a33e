// What an operation does on its rank: its buffers, what travels, and what is
// made of it on arrival.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/nccl/board.h"
#include "tests/fake_cuda/nccl/record.h"

namespace sluice::fake_nccl {

// An operation as its caller gave it.
struct Issue {
  What what;
  const void* send = nullptr;
  void* receive = nullptr;
};

// What it reads, and then what it writes; of no bytes: nothing.
struct Buffers {
  fake_cuda::Access read, written;
};
Buffers BuffersOf(const Issue& issue, Place place);

// What is wrong with an operation in itself; empty: nothing.
std::string CheckArguments(const Issue& issue, Place place);
// Checks that no two operations of a group touch the same bytes if one writes,
// except what NCCL calls in place.
std::string CheckApart(const std::vector<Issue>& group, Place place);

// To be done with the buffers of each, as the CPU finds them: two a piece, in
// the order of BuffersOf. False: it was ended before it was whole.
bool Perform(Board& board, const std::vector<Issue>& group, Place place,
             const fake_cuda::Views& views,
             const std::function<bool()>& stopped);

}  // namespace sluice::fake_nccl
