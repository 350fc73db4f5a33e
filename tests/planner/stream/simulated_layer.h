// Simulates a streamed layer with three engines (copies in, compute, copies
// out) in the order in which client/torch/stream issues operations, through
// rings with as many slots as in a run. Tests compare planner/stream/layer_time
// with the simulation.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "planner/stream/layer_time.h"
#include "planner/stream/schedule.h"

namespace sluice::stream {

// Runs one operation at a time. Run() returns the end of an operation that
// begins at `after` or later.
struct Engine {
  double free = 0;
  double Run(double after, double seconds) {
    free = std::max(free, after) + seconds;
    return free;
  }
};

// A ring of slots that fetches in order, as far ahead as slots and available
// bytes allow (client/torch/stream/chunk_io.h).
class SimulatedFetches {
 public:
  struct Fetch {
    double seconds = 0, written = 0;
  };
  // Sets the seconds of the k-th fetch, and the time at which its bytes are in
  // host memory. Returns false if they are not sent yet.
  using Program = std::function<bool(size_t k, Fetch& fetch)>;
  SimulatedFetches(Engine* link, Engine* compute, std::vector<double>* slots,
                   size_t count, Program program);
  void Next();  // compute waits for the next fetch
  void Done() { Done(compute_->free); }
  void Done(double last_use);
  void Pump();

 private:
  Engine *link_, *compute_;
  std::vector<double>* slots_;  // the times of their last uses
  size_t count_;
  Program program_;
  size_t issued_ = 0, taken_ = 0, done_ = 0;
  std::vector<double> ready_;
};

// The compute seconds of a chunk. `block` is an attention block off the
// diagonal; a diagonal block takes half.
struct ChunkCompute {
  double qkv = 0, block = 0, post = 0;  // forward
  double post_backward = 0, block_backward = 0, qkv_backward = 0;
};
// Returns the seconds that a layer adds once the rings have settled.
LayerSeconds SimulateLayer(const StreamShape& shape, const ChunkCompute& chunk,
                           const LinkSpeeds& links);

}  // namespace sluice::stream
