// The memory of torch's workspaces for cuBLAS. With cublas=1 (settings.h) a
// thread's first matrix product on a stream allocates a workspace from torch's
// allocator and keeps it (assumed: CublasHandlePool.cpp of torch 2).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace sluice::fake_cuda {

// Call this before operator `op` ("aten::mm") is issued with operands on this
// GPU. The size comes from CUBLAS_WORKSPACE_CONFIG. An unset variable is a
// finding, as torch would choose the size by the GPU's model.
void TakeWorkspace(const std::string& op, at::Device gpu);

}  // namespace sluice::fake_cuda
