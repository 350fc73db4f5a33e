// A kernel of the fake GPU: CPU code over device tensors, as one operation of
// torch's current stream.
//
// A call checks its arguments on the caller's thread and returns; the work is
// done later, on the stream's thread. It keeps no operands alive: as on a GPU,
// memory that is freed too early is overwritten. The race detector gets the
// accesses, by the bytes that a tensor really has.
//
// Thread safety: as of the caller's torch stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/fake_cuda/control.h"

namespace sluice::fake_cuda {

// A device tensor without its storage: its address, sizes and type.
class DeviceView {
 public:
  explicit DeviceView(const at::Tensor& tensor);

  // Returns the tensor's bytes, in several pieces if it is a part of each row
  // of a larger tensor.
  const std::vector<Access>& reads() const { return reads_; }
  // Returns the same as a CPU tensor over that memory.
  at::Tensor OnCpu(std::byte* bytes) const;

 private:
  const std::vector<int64_t> sizes_, strides_;
  const at::ScalarType type_;
  std::vector<Access> reads_;
};

using Tensors = std::vector<at::Tensor>;
// Receives the tensors that it reads and those that it writes as CPU tensors,
// in the order in which they were given; a tensor may be in both.
using KernelCode =
    std::function<void(const Tensors& reads, const Tensors& writes)>;

// Launches a kernel. Throws at::Error with CUDA's code if the driver refuses.
// All tensors must be on one GPU. An exception of the code itself is a finding.
void Launch(const std::string& name, const Tensors& reads,
            const Tensors& writes, KernelCode code);
// Launches and waits until it is done, hidden from the race detector: for
// values that a real kernel would know without computing. Counted by Looks.
void LaunchAndLook(const std::string& name, const Tensors& reads,
                   const Tensors& writes, KernelCode code);
// Returns the number of LaunchAndLook calls in this process.
int64_t Looks();

inline bool IsOnGpu(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda();
}

}  // namespace sluice::fake_cuda
