// Where tests of a step compute: a simulated node, or, with
// SLUICE_TEST_DEVICE=cuda in the environment, GPU 0 of whichever CUDA driver is
// found: the fake one (tests/fake_cuda), as CTest runs them, or NVIDIA's. The
// fake's findings then judge the run, too. Attention is by the kernel that
// SLUICE_TEST_ATTENTION names there (auto).
//
// There ranks are threads of one process and share the GPU and torch's stream:
// blocks of the one region are reused in the order of that stream. What they
// send each other goes through the host; NCCL has tests of its own.
#pragma once

#include <c10/core/Device.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/torch/memory/region_allocator.h"
#include "client/torch/ranks/collectives.h"
#include "kernels/device/driver.h"
#include "tests/conformance/mapped.h"
#include "tests/support/temp_dir.h"

namespace sluice::runtime {

// Whether this process's tests run on a CUDA driver, the fake one or NVIDIA's.
bool OnCuda();
// The device of every tensor of a rank.
at::Device TestDevice();

// What the fake has found since the last time, a line each; it does not count
// at the process's end any more. REQUIRES: it is the fake that is loaded.
std::string TakeFindings();
// Copies of memory that is not pinned, so far; 0 where it is not the fake that
// is loaded.
long PageableCopies();

class TestNode {
 public:
  // Speeds in bytes per second into and out of HBM; 0: not throttled. On
  // CUDA they are not set.
  TestNode(int gpus, double in_speed, double out_speed);

  device::Driver* driver() const { return driver_; }
  at::Device device() const { return TestDevice(); }
  // For the thread that computes as a rank, before it does.
  void EnterRank() const;
  absl::StatusOr<std::unique_ptr<client::CopyEngine>> StartCopies(
      int rank, Bytes slice = client::CopyEngine::Options().slice) const;
  // The GPU's memory as torch's, armed for the tests' own thread; null on sim,
  // where a test brings its own.
  RegionAllocator* hbm() const;
  // What a rank calls where its tensors are not the host's; null: `host` does.
  std::unique_ptr<Collectives> CollectivesOver(Collectives* host) const;

 private:
  std::optional<testing::TempDir> directory_;
  std::unique_ptr<device::Driver> sim_;
  device::Driver* driver_ = nullptr;
};

// Host memory of exactly `size` bytes at a 64-byte boundary, guarded behind.
class Arena {
 public:
  explicit Arena(Bytes size);  // of the heap
  // Pinned, where the node's GPU copies from it.
  Arena(Bytes size, const TestNode& node);
  Arena(const Arena&) = delete;
  std::byte* data() const { return data_; }
  bool GuardIntact() const;

 private:
  void Begin();

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  const Bytes size_;
  std::unique_ptr<std::byte, Free> heap_;
  std::unique_ptr<device::Mapped> pinned_;
  std::byte* data_ = nullptr;
};

}  // namespace sluice::runtime
