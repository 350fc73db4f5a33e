// A kernel of the fake GPU: CPU code over device tensors, as one operation of
// torch's current stream.
//
// An operator checks its arguments on the caller's thread and returns. The
// stream's thread does the work later. Queued work keeps no operand alive: as
// on a GPU, memory that is freed too early is overwritten. The race detector is
// told which bytes each tensor has.
//
// Thread safety: thread-safe; torch's current stream is the calling thread's.
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

  // Returns the tensor's bytes, in several pieces if they are not contiguous.
  const std::vector<Access>& reads() const { return reads_; }
  // Returns a CPU tensor of the same sizes and type over `bytes`.
  at::Tensor OnCpu(std::byte* bytes) const;

 private:
  const std::vector<int64_t> sizes_, strides_;
  const at::ScalarType type_;
  std::vector<Access> reads_;
};

using Tensors = std::vector<at::Tensor>;
// Receives the operands of Launch as CPU tensors, in their order. A tensor may
// be in both lists.
using KernelCode =
    std::function<void(const Tensors& reads, const Tensors& writes)>;

// Launches a kernel. Throws c10::Error with CUDA's code if the driver refuses.
// All tensors must be on one GPU. An exception from `code` is a finding.
void Launch(const std::string& name, const Tensors& reads,
            const Tensors& writes, KernelCode code);
// Launches a kernel and waits for it; the race detector ignores the wait. Used
// for sizes and numbers that an operator must return to its caller.
void LaunchAndLook(const std::string& name, const Tensors& reads,
                   const Tensors& writes, KernelCode code);
// Returns the number of LaunchAndLook calls in this process.
int64_t Looks();

inline bool IsOnGpu(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda();
}

}  // namespace sluice::fake_cuda
