#include "tests/fake_cuda/torch/workspace.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "proto/base/mutex.h"
#include "tests/fake_cuda/control.h"

namespace sluice::fake_cuda {
namespace {

struct Workspaces {
  Mutex mutex;
  std::map<std::pair<std::thread::id, cudaStream_t>, c10::DataPtr> taken
      ABSL_GUARDED_BY(mutex);
};

// Never freed, like torch's.
Workspaces& TheWorkspaces() {
  static Workspaces* const workspaces = new Workspaces;
  return *workspaces;
}

bool IsProduct(const std::string& op) {
  static const std::set<std::string> products = {
      "aten::mm",  "aten::addmm",   "aten::addmm_",   "aten::dot",
      "aten::bmm", "aten::baddbmm", "aten::baddbmm_", "aten::mv"};
  return products.contains(op);
}

// Returns the total size in CUBLAS_WORKSPACE_CONFIG, a list of ":KIB:COUNT".
size_t ChosenBytes() {
  const char* text = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  if (text == nullptr) {
    fake_cuda_find(
        "CUBLAS_WORKSPACE_CONFIG is not set: how much of the lease torch takes "
        "depends on the GPU (Sluice's own rule)");
    return 0;
  }
  size_t bytes = 0, kib = 0, count = 0;
  for (int used = 0; std::sscanf(text, ":%zu:%zu%n", &kib, &count, &used) == 2;
       text += used) {
    bytes += 1024 * kib * count;
  }
  return bytes;
}

}  // namespace

void TakeWorkspace(const std::string& op, at::Device gpu) {
  if (!IsProduct(op) || fake_cuda_setting("cublas") == 0) return;
  Workspaces& all = TheWorkspaces();
  const MutexLock lock(all.mutex);
  const auto stream = c10::cuda::getCurrentCUDAStream(gpu.index());
  const std::pair owner(std::this_thread::get_id(), stream.stream());
  if (all.taken.contains(owner)) return;
  const c10::cuda::CUDAGuard guard(gpu);
  all.taken[owner] =
      c10::cuda::CUDACachingAllocator::get()->allocate(ChosenBytes());
}

}  // namespace sluice::fake_cuda

// Torch's own function (ATen/cuda/CUDAContextLight.h), for these workspaces.
namespace at::cuda {

__attribute__((visibility("default"))) void clearCublasWorkspaces();

void clearCublasWorkspaces() {
  auto& all = sluice::fake_cuda::TheWorkspaces();
  const sluice::MutexLock lock(all.mutex);
  all.taken.clear();
}

}  // namespace at::cuda
