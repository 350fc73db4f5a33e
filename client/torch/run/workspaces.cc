#include "client/torch/run/workspaces.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <cstdlib>

#include "client/torch/memory/torch_cuda.h"
#include "client/torch/placement.h"

namespace sluice::runtime {
namespace {

constexpr int64_t kSide = 16;  // every kernel supports it

}  // namespace

void ChooseWorkspaceSize() {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
}

void TakeWorkspaces(c10::Device device) {
  if (device.is_cpu()) return;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::zeros({kSide, kSide}, On(device, type));
    at::mm(x, x);
    at::addmm(x[0], x, x);  // with a bias: cuBLASLt
    at::dot(x[0], x[0]);
  }
}

void DropWorkspaces(c10::Device device) {
  if (device.is_cuda()) LoadedTorchCuda()->DropWorkspaces();
}

}  // namespace sluice::runtime
