#include "client/torch/run/workspaces.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "client/torch/exceptions.h"
#include "client/torch/memory/torch_cuda.h"
#include "client/torch/placement.h"
#include "client/torch/run/agreement.h"
#include "client/torch/run/host_stage.h"
#include "client/torch/run/rank_memory.h"
#include "proto/base/status.h"

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

namespace {

// Runs each kind of collective of a run once; `numbers` has two per rank.
absl::Status SendSome(Collectives& gpus, at::Tensor numbers) {
  const int64_t ranks = gpus.world_size();
  const std::vector<int64_t> one(static_cast<size_t>(ranks), 1);
  // The first operation on the GPU also gives the thread its context, without
  // which NCCL refuses.
  numbers.zero_();
  SLUICE_RETURN_IF_ERROR(gpus.SumAll(numbers));
  SLUICE_RETURN_IF_ERROR(gpus.SumTo(numbers, 0));
  SLUICE_RETURN_IF_ERROR(gpus.Broadcast(numbers, 0));
  return gpus.AllToAll(numbers.narrow(0, 0, ranks), one,
                       numbers.narrow(0, ranks, ranks), one);
}

}  // namespace

absl::Status WarmUpCommunicators(RankMemory& memory, Collectives& gpus) {
  client::Session& session = memory.session();
  auto region = session.LeaseGpu(session.limits().granularity);
  SLUICE_RETURN_IF_ERROR(Agree(&gpus, region.status()));
  const absl::Status sent = CatchStatus("the ranks' first collectives", [&] {
    return SendSome(gpus, ViewOf((*region)->data(), {2 * gpus.world_size()},
                                 at::kFloat, memory.device()));
  });
  // Issued operations still use the region.
  AwaitStream(memory.device());
  SLUICE_RETURN_IF_ERROR(sent);
  SLUICE_RETURN_IF_ERROR(gpus.Check());
  region->reset();
  return session.MeasureOutside();
}

}  // namespace sluice::runtime
