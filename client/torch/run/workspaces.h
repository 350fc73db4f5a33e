// What libraries of a GPU keep for themselves, taken before it could be in a
// recorded segment.
//
// Torch has a workspace for cuBLAS, and one for cuBLASLt, for each thread and
// stream. The first product there takes it through the current allocator, so
// out of the lease, and it stays: in whichever segment that product is, a
// calibration would record memory that no other execution asks for.
//
// Thread safety: of the thread that will compute, on its stream.
#pragma once

#include <c10/core/Device.h>

namespace sluice::runtime {

// Before torch's first product on a GPU, and before the process has threads:
// the size of the workspace (CUBLAS_WORKSPACE_CONFIG), unless the environment
// has one already. 32 MiB, which NVIDIA recommends from Hopper on, and with
// which results do not change from run to run; torch's own choice would depend
// on the GPU.
void ChooseWorkspaceSize();

// A product of each kind that a step has; on the CPU nothing. Throws
// c10::OutOfMemoryError where the lease has no room for a workspace.
void TakeWorkspaces(c10::Device device);

// Gives them back; to be called before their lease ends, when no product runs
// any more: the next one would use memory that is not there.
void DropWorkspaces(c10::Device device);

}  // namespace sluice::runtime
