// Opens the real libtorch_cuda.so, for the parts that are no kernels (c10d's
// ProcessGroupNCCL). Replaces every kernel of ATen that it registers, as no GPU
// code can run here.
//
// This file must be linked first in this library: the dispatcher uses the
// kernel that was registered last. That must be another file's kernel.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_cuda/cudart/kept.h"
#include "tests/fake_cuda/torch/boxed.h"

namespace sluice::fake_cuda {
namespace {

constexpr auto kKey = c10::DispatchKey::CUDA;

std::set<std::string> Registered() {
  std::set<std::string> names;
  for (const auto& name :
       c10::Dispatcher::singleton().getRegistrationsForDispatchKey(kKey)) {
    names.insert(c10::toString(name));
  }
  return names;
}

// Silences the warnings about replaced kernels, as the replacement is intended.
struct Quiet final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

[[gnu::constructor(101)]] void TakeOver() {
  auto& dispatcher = c10::Dispatcher::singleton();
  const std::set<std::string> before = Registered();
  if (dlopen(SLUICE_WHOLE_TORCH_CUDA, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "fake libtorch_cuda: %s\n", dlerror());
    std::abort();
  }
  // Never destroyed, as that would remove the kernels again.
  auto* const kept = new std::vector<c10::RegistrationHandleRAII>;
  static Quiet quiet;
  c10::WarningUtils::set_warning_handler(&quiet);
  for (const auto& name : dispatcher.getRegistrationsForDispatchKey(kKey)) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    if (before.count(c10::toString(name)) > 0) continue;
    kept->push_back(dispatcher.registerImpl(
        name, kKey, c10::KernelFunction::makeFromBoxedFunction<&RunBoxed>(),
        std::nullopt, nullptr, "tests/fake_cuda/torch"));
  }
  c10::WarningUtils::set_warning_handler(nullptr);
  fake_cudart_torch_keeps();
}

}  // namespace
}  // namespace sluice::fake_cuda
