// Runs CPU code as one operation of a stream, for fake_cuda_run (control.h) and
// for launches of kernels.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/fake_cuda/call.h"
#include "tests/fake_cuda/control.h"

namespace sluice::fake_cuda {

// Enqueues `work` on a stream of the call's context.
Result EnqueueHostOperation(Call& call, StreamPointer stream,
                            const std::string& what,
                            const std::vector<Access>& accesses,
                            const std::function<void(const Views&)>& work);

}  // namespace sluice::fake_cuda
