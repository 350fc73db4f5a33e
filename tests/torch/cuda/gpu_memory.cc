#include "tests/torch/cuda/gpu_memory.h"

#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/nccl/test_rank.h"

namespace sluice::testing {

class GpuMemory::Impl : public fake_nccl::TestRank {
 public:
  using TestRank::TestRank;
};

GpuMemory::GpuMemory(int rank, int ranks) {
  cuInit(0);
  impl_ = std::make_unique<Impl>(rank, ranks);
}
GpuMemory::~GpuMemory() = default;

void* GpuMemory::Make(const std::vector<float>& values) {
  void* const made = impl_->Make(values);
  impl_->Wait();
  return made;
}

std::vector<float> GpuMemory::Read(void* at, size_t floats) {
  return impl_->Read(at, floats);
}

std::string GpuMemory::Findings() {
  std::string findings;
  fake_cuda::fake_cuda_take_findings(findings);
  return findings;
}

}  // namespace sluice::testing
