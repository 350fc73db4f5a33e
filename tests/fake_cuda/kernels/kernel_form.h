// What the fake driver runs where a GPU runs a kernel: its CPU form, found by
// the kernel's name in the library libfake_cuda_kernels.so.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "tests/fake_cuda/control.h"

namespace sluice::fake_cuda {

struct Grid {
  std::array<unsigned, 3> blocks, threads;  // of a block
};

struct KernelForm {
  // In bytes, in the order of the kernel's parameters.
  std::vector<size_t> argument_sizes;
  // Which bytes a launch uses: nothing beside them may be touched.
  std::function<std::vector<Access>(void* const* arguments)> accesses;
  // On the stream's thread. The views are of `accesses`.
  std::function<void(const Grid&, void* const* arguments, const Views&)> run;
};

// const KernelForm* (const char* name), exported; null: it has none.
inline constexpr char kFindKernelForm[] = "fake_cuda_kernel_form";

}  // namespace sluice::fake_cuda
