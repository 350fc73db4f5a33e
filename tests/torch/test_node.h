// The device on which tests of a step compute: a simulated node or, if
// SLUICE_TEST_DEVICE is cuda, GPU 0 of the CUDA driver that is found. In CTest
// that is the fake driver (tests/fake_cuda); its findings fail the run, too.
// SLUICE_TEST_ATTENTION chooses the GPU's attention kernel (default: auto).
//
// On CUDA ranks are threads of one process and share the GPU and torch's
// stream: blocks of the one region are reused in the order of that stream.
// Ranks exchange data through the host; NCCL has tests of its own.
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

// Returns whether the tests run on a CUDA driver, the fake one or NVIDIA's.
bool OnCuda();
at::Device TestDevice();

// Returns the fake's findings since the last call, one per line. They no longer
// count at the process's end. REQUIRES: the fake is loaded.
std::string TakeFindings();
// Returns the number of copies of pageable memory; 0 without the fake.
long PageableCopies();

class TestNode {
 public:
  // Speeds are in bytes per second; 0 means no limit. CUDA ignores them.
  TestNode(int gpus, double in_speed, double out_speed);

  device::Driver* driver() const { return driver_; }
  at::Device device() const { return TestDevice(); }
  // A thread must call this before it computes as a rank.
  void EnterRank() const;
  absl::StatusOr<std::unique_ptr<client::CopyEngine>> StartCopies(
      int rank, Bytes slice = client::CopyEngine::Options().slice) const;
  // Returns the allocator of the GPU's memory, armed for the test's thread, or
  // null on sim, where a test makes its own.
  RegionAllocator* hbm() const;
  // Returns collectives for tensors on a GPU, or null if `host` suffices.
  std::unique_ptr<Collectives> CollectivesOver(Collectives* host) const;

 private:
  std::optional<testing::TempDir> directory_;
  std::unique_ptr<device::Driver> sim_;
  device::Driver* driver_ = nullptr;
};

// Host memory of exactly `size` bytes, 64-byte aligned, with a guard behind.
class Arena {
 public:
  explicit Arena(Bytes size);  // on the heap
  // On CUDA the memory is pinned.
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
