// A rank of a test: a thread or a process with a GPU of its own, a stream, and
// memory that it fills and reads.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "tests/fake_cuda/exports.h"
#include "tests/fake_cuda/nccl/api.h"

namespace sluice::fake_nccl {

using Floats = std::vector<float>;

class TestRank {
 public:
  // Makes the context of GPU `rank` current in this thread.
  TestRank(int rank, int ranks);
  ~TestRank();
  TestRank(const TestRank&) = delete;

  // Joins the communicator; fails the test if it cannot.
  Communicator* Join(const UniqueId& id);
  // Returns memory on the GPU for `floats` floats, which lives as long as this
  // object.
  void* Make(size_t floats);
  void* Make(const Floats& values);
  // Fills memory by an operation on `on`, or on `stream` if `on` is null.
  void Fill(void* at, const Floats& values, StreamPointer on = nullptr);
  // Reads memory by an operation on `stream`, and waits for that stream.
  Floats Read(void* at, size_t floats);
  void Wait() { cuStreamSynchronize(stream); }
  // Waits until the communicator has an error, and returns it.
  static Result AwaitError(Communicator* communicator);

  const int rank;
  const int ranks;
  StreamPointer stream = nullptr;

 private:
  struct Memory {
    device::cuda::MemoryHandle handle = 0;
    DevicePointer address = 0;
    size_t size = 0;
  };
  std::vector<Memory> memories_;
};

// Runs `body` on a thread per rank. Returns the findings, or "".
std::string RunRanks(int ranks, const std::function<void(TestRank&)>& body);
// Runs `body` with one communicator of all ranks, and destroys it at the end.
using WithOne = std::function<void(TestRank&, Communicator*)>;
std::string RunRanks(int ranks, const WithOne& body);
// Runs `body` with two communicators of all ranks.
using WithTwo = std::function<void(TestRank&, Communicator*, Communicator*)>;
std::string RunRanks(int ranks, const WithTwo& body);

}  // namespace sluice::fake_nccl
