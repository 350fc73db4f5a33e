// Allocates the workspaces of a GPU's libraries before a segment is recorded.
//
// Torch has a workspace for cuBLAS, and one for cuBLASLt, for each thread and
// stream. The first product allocates it through the current allocator, so from
// the lease, and the workspace stays. If that happened inside a segment, a
// calibration would record memory that no other execution asks for.
//
// Thread safety: of the thread that will compute, on its stream.
#pragma once

#include <c10/core/Device.h>

namespace sluice::runtime {

// Sets the size of the workspace (CUBLAS_WORKSPACE_CONFIG), unless the
// environment has one. The size is 32 MiB: NVIDIA recommends it from Hopper on,
// and results do not change from run to run with it. Torch's own choice would
// depend on the GPU. Call it before torch's first product on a GPU, and before
// the process has threads.
void ChooseWorkspaceSize();

// Allocates the workspaces by running a product of each kind that a step has.
// Does nothing on the CPU. Throws c10::OutOfMemoryError if the lease has no
// room for a workspace.
void TakeWorkspaces(c10::Device device);

// Frees the workspaces. Call it before their lease ends, when no product runs
// any more: a later product would use memory that is gone.
void DropWorkspaces(c10::Device device);

}  // namespace sluice::runtime
