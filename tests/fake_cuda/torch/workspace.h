// Torch's workspaces for cuBLAS, as far as they show: with cublas=1
// (settings.h) a thread's first product on a stream takes one through the
// current allocator and keeps it (assumed: CublasHandlePool.cpp of torch 2).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace sluice::fake_cuda {

// Before operator `op` ("aten::mm") is issued with operands on this GPU. Its
// size is what CUBLAS_WORKSPACE_CONFIG says; if it is not set, that is a
// finding: torch would choose by the GPU.
void TakeWorkspace(const std::string& op, at::Device gpu);

}  // namespace sluice::fake_cuda
