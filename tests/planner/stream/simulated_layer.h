// Simulates a streamed layer with three engines (copies in, compute, copies
// out). Each does one thing after the other, in the order in which
// client/torch/stream issues them, through rings with as many slots as the run
// has. The tests compare the closed form of planner/stream/layer_time with it.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "planner/stream/layer_time.h"
#include "planner/stream/schedule.h"

namespace sluice::stream {

// Does one thing after the other.
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
  // Returns the seconds of the k-th fetch, and when its bytes are available;
  // false: not sent yet.
  struct Fetch {
    double seconds = 0, written = 0;
  };
  using Program = std::function<bool(size_t k, Fetch& fetch)>;
  SimulatedFetches(Engine* link, Engine* compute, std::vector<double>* slots,
                   size_t count, Program program);
  void Next();  // compute waits for the next one
  void Done() { Done(compute_->free); }
  void Done(double last_use);
  void Pump();

 private:
  Engine *link_, *compute_;
  std::vector<double>* slots_;  // their last uses
  size_t count_;
  Program program_;
  size_t issued_ = 0, taken_ = 0, done_ = 0;
  std::vector<double> ready_;
};

// The seconds that the second of two layers adds: forward, and backward by
// phases. `block` is an attention block off the diagonal; a diagonal one takes
// half. The other pieces are per chunk.
struct ChunkCompute {
  double qkv = 0, block = 0, post = 0;  // forward
  double post_backward = 0, block_backward = 0, qkv_backward = 0;
};
LayerSeconds SimulateLayer(const StreamShape& shape, const ChunkCompute& chunk,
                           const LinkSpeeds& links);

}  // namespace sluice::stream
