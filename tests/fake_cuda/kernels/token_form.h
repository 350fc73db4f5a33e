// The CPU forms of kernels/ops/token_math.cu.
#pragma once

#include <map>
#include <string_view>

#include "tests/fake_cuda/kernels/kernel_form.h"

namespace sluice::fake_cuda {

// Returns the form of this kernel; null: it is none of these kernels.
const KernelForm* TokenForm(std::string_view name);

}  // namespace sluice::fake_cuda
