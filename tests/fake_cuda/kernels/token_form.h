// The CPU forms of kernels/ops/token_math.cu.
#pragma once

#include <map>
#include <string_view>

#include "tests/fake_cuda/kernels/kernel_form.h"

namespace sluice::fake_cuda {

// Returns null if the file has no kernel of this name.
const KernelForm* TokenForm(std::string_view name);

}  // namespace sluice::fake_cuda
