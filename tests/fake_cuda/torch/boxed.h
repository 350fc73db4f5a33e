// Runs ATen's CPU kernel of an operator as one operation of torch's current
// stream.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

namespace sluice::fake_cuda {

// A boxed kernel for any operator of ATen under torch's CUDA key.
void RunBoxed(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
              torch::jit::Stack* stack);

}  // namespace sluice::fake_cuda
