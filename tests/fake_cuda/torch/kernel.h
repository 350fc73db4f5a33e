// A kernel of the fake GPU: CPU code over device tensors, as one operation of
// torch's current stream.
//
// A call checks on the caller and returns; the work is done later, on the
// stream's thread. Nothing keeps operands alive: as on a GPU, memory that is
// freed too early is overwritten. Accesses are told to the race detector, by
// the bytes that a tensor really has.
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

// A device tensor without its storage: where it lies, its sizes and type.
class DeviceView {
 public:
  explicit DeviceView(const at::Tensor& tensor);

  // Its bytes: in pieces, where it is a part of each row of something else.
  const std::vector<Access>& reads() const { return reads_; }
  // The same as a tensor of the CPU, over that memory.
  at::Tensor OnCpu(std::byte* bytes) const;

 private:
  const std::vector<int64_t> sizes_, strides_;
  const at::ScalarType type_;
  std::vector<Access> reads_;
};

using Tensors = std::vector<at::Tensor>;
// Gets what it reads and what it writes as tensors of the CPU, in the order in
// which they were given; a tensor may be among both.
using KernelCode =
    std::function<void(const Tensors& reads, const Tensors& writes)>;

// Throws at::Error with CUDA's code if the driver refuses. All tensors are on
// one GPU. An exception of the code itself is a finding.
void Launch(const std::string& name, const Tensors& reads,
            const Tensors& writes, KernelCode code);
// The same, and waits until it is done, unseen by the race detector: for what
// a real kernel would know without having computed. Counted.
void LaunchAndLook(const std::string& name, const Tensors& reads,
                   const Tensors& writes, KernelCode code);
// How often that was, in this process.
int64_t Looks();

inline bool IsOnGpu(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda();
}

}  // namespace sluice::fake_cuda
