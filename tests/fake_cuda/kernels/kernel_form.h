// The CPU form of a kernel, which the fake driver runs instead of the kernel.
// The driver finds a form by the kernel's name, in libfake_cuda_kernels.so.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "tests/fake_cuda/control.h"

namespace sluice::fake_cuda {

struct Grid {
  std::array<unsigned, 3> blocks, threads;  // threads per block
};

struct KernelForm {
  // The size in bytes of each of the kernel's parameters.
  std::vector<size_t> argument_sizes;
  // Returns all bytes that a launch reads or writes.
  std::function<std::vector<Access>(void* const* arguments)> accesses;
  // Runs on the stream's thread. The views are those of `accesses`.
  std::function<void(const Grid&, void* const* arguments, const Views&)> run;
};

// The name of the exported function `const KernelForm* (const char* name)`,
// which returns null for a kernel without a form.
inline constexpr char kFindKernelForm[] = "fake_cuda_kernel_form";

}  // namespace sluice::fake_cuda
