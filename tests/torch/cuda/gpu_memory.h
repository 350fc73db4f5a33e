// A rank's fake GPU, for programs that include torch. This header declares none
// of CUDA's functions, because torch's headers declare them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace sluice::testing {

class GpuMemory {
 public:
  // Uses GPU `rank`. Its context becomes current in the calling thread.
  explicit GpuMemory(int rank, int ranks);
  ~GpuMemory();

  void* Make(const std::vector<float>& values);
  std::vector<float> Read(void* at, size_t floats);
  // Returns the findings of the fakes in this process so far.
  static std::string Findings();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::testing
