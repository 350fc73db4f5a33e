// cuda_operators LIBTORCH_CUDA: reads operators from stdin, one per line, and
// prints those without a CUDA kernel in that library. Needs no GPU.
//
// Exits with 2 if the library cannot be loaded, or if it registers no kernels.
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>

#include <iostream>
#include <string>

namespace {

constexpr auto kKey = c10::DispatchKey::CUDA;

c10::OperatorName Parsed(const std::string& line) {
  const size_t dot = line.find('.');
  if (dot == std::string::npos) return {line, ""};
  return {line.substr(0, dot), line.substr(dot + 1)};
}

bool HasKernel(const c10::OperatorName& name) {
  const auto op = c10::Dispatcher::singleton().findOp(name);
  return op && op->hasComputedKernelForDispatchKey(kKey);
}

}  // namespace

int main(int count, char** arguments) {
  const c10::OperatorName mm("aten::mm", "out");
  const bool before = HasKernel(mm);
  if (count != 2 || dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::cerr << "no libtorch_cuda: " << dlerror() << "\n";
    return 2;
  }
  if (before || !HasKernel(mm)) {
    std::cerr << "the loaded library adds no kernel of aten::mm.out\n";
    return 2;
  }
  for (std::string line; std::getline(std::cin, line);) {
    if (!HasKernel(Parsed(line))) std::cout << line << "\n";
  }
  return 0;
}
