// A library to preload into a program. At the first call of each overload of an
// ATen operator, it adds a line with the overload's name to the process's file
// in the folder SLUICE_RECORDED_OPERATORS.
#include <ATen/record_function.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <set>
#include <string>

#include "proto/base/mutex.h"

namespace sluice::fake_cuda {
namespace {

class Recorder {
 public:
  explicit Recorder(const std::string& folder)
      : file_(open(fmt::format("{}/{}", folder, getpid()).c_str(),
                   O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600)) {}

  void Note(const at::RecordFunction& function) {
    const auto name = function.operator_name();
    if (!name) return;
    const std::string text = c10::toString(*name) + "\n";
    const MutexLock lock(mutex_);
    if (!seen_.insert(text).second) return;
    // A missing line might let operators_test.py pass by mistake.
    if (write(file_, text.data(), text.size()) !=
        static_cast<ssize_t>(text.size())) {
      std::abort();
    }
  }

 private:
  const int file_;
  Mutex mutex_;
  std::set<std::string> seen_ ABSL_GUARDED_BY(mutex_);
};

Recorder* recorder = nullptr;  // never destroyed: threads outlive main

std::unique_ptr<at::ObserverContext> Start(const at::RecordFunction& function) {
  recorder->Note(function);
  return nullptr;
}

[[gnu::constructor]] void Record() {
  const char* const folder = std::getenv("SLUICE_RECORDED_OPERATORS");
  if (folder == nullptr) return;
  recorder = new Recorder(folder);
  at::addGlobalCallback(at::RecordFunctionCallback(&Start).scopes(
      {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

}  // namespace
}  // namespace sluice::fake_cuda
