// Torch's workspaces for cuBLAS, as far as they are visible. With cublas=1
// (settings.h) a thread's first matrix product on a stream allocates one
// through the current allocator and keeps it (assumed: CublasHandlePool.cpp of
// torch 2).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace sluice::fake_cuda {

// Call this before operator `op` ("aten::mm") is issued with operands on this
// GPU. The size comes from CUBLAS_WORKSPACE_CONFIG; if that is not set, it is a
// finding, as torch would choose by the GPU.
void TakeWorkspace(const std::string& op, at::Device gpu);

}  // namespace sluice::fake_cuda
