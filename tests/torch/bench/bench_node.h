// Common parts of the torch benches: a simulated node with one GPU, HBM as an
// armed region, and host memory.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "client/copy/copy_engine.h"
#include "client/torch/memory/region_allocator.h"
#include "kernels/device/sim/sim.h"
#include "tests/support/temp_dir.h"

namespace sluice::bench {

// Aligned memory from outside c10's allocators.
class Memory {
 public:
  explicit Memory(Bytes size);
  std::byte* data() const { return data_.get(); }
  Bytes size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  Bytes size_;
  std::unique_ptr<std::byte, Free> data_;
};

// One simulated GPU. All c10 allocations come from its "HBM".
class Node {
 public:
  explicit Node(Bytes hbm);
  ~Node();

  runtime::RegionAllocator& allocator() { return allocator_; }
  client::CopyEngine& engine() { return *engine_; }
  // `bytes_per_second` is for each direction; 0 means no limit.
  void SetLinkSpeed(double bytes_per_second);

 private:
  testing::TempDir directory_;
  std::unique_ptr<device::SimNode> node_;
  std::unique_ptr<device::Driver> driver_;
  std::unique_ptr<client::CopyEngine> engine_;
  Memory hbm_;
  runtime::RegionAllocator allocator_;
};

double Seconds(const std::function<void()>& body);
double Median(std::vector<double> values);
// Returns the number of cores less one, left for copies, but at least 1.
int ComputeThreads();

}  // namespace sluice::bench
