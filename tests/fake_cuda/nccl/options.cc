#include "tests/fake_cuda/nccl/options.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

namespace sluice::fake_nccl {
namespace {

struct Options {
  bool silent = false;
  bool aborts = true;
  bool counts = false;
};

bool Apply(const std::string& setting, Options& options) {
  const size_t equals = setting.find('=');
  if (equals == std::string::npos) return false;
  const std::string name = setting.substr(0, equals);
  const std::string value = setting.substr(equals + 1);
  if (value != "0" && value != "1") return false;
  if (name == "silent") options.silent = value == "1";
  if (name == "aborts") options.aborts = value == "1";
  if (name == "counts") options.counts = value == "1";
  return name == "silent" || name == "aborts" || name == "counts";
}

const Options& TheOptions() {
  static const Options options = [] {
    Options read;
    const char* const text = std::getenv("SLUICE_FAKE_NCCL");
    std::istringstream list(text == nullptr ? "" : text);
    for (std::string setting; std::getline(list, setting, ',');) {
      if (Apply(setting, read)) continue;
      std::fprintf(stderr,
                   "fake libnccl: no such setting in SLUICE_FAKE_NCCL: %s\n",
                   text);
      std::abort();
    }
    return read;
  }();
  return options;
}

}  // namespace

bool SilentDeaths() { return TheOptions().silent; }

bool AbortsAreFine() { return TheOptions().aborts; }

bool TellsCounts() { return TheOptions().counts; }

}  // namespace sluice::fake_nccl
