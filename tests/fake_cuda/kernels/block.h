// Runs the threads of a block as fibers of one CPU thread, so that a .cu file
// runs unchanged. Each fiber runs alone until it waits for others.
//
// Between barriers the threads run in an order that differs from block to
// block, so that tests find code that is right in one order only. The order is
// the same in each run. A barrier that some of its threads never reach is an
// error (documented: the programming guide, of __syncwarp and __syncthreads).
#pragma once

#include <cstdint>
#include <functional>

#include "tests/fake_cuda/kernels/kernel_form.h"

namespace sluice::fake_cuda {

inline constexpr unsigned kWarp = 32;

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};
// The running thread's position in its block and grid.
struct Position {
  Index3 thread, block, threads, blocks;
};
const Position& Here();

// Runs `body` once per thread of the grid, block after block. Throws
// std::runtime_error at a barrier that some threads never reach.
void RunGrid(const Grid& grid, const std::function<void()>& body);

// Wait until all threads of the warp, or of the block, have reached the call.
void SyncWarp();
void SyncBlock();
// Returns the slot of eight bytes that a lane of the running thread's warp has
// for passing values.
uint64_t& Exchange(unsigned lane);
unsigned Lane();

}  // namespace sluice::fake_cuda
