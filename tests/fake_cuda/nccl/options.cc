#include "tests/fake_cuda/nccl/options.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace sluice::fake_nccl {

bool SilentDeaths() {
  static const bool silent = [] {
    const char* const text = std::getenv("SLUICE_FAKE_NCCL");
    const std::string_view value = text == nullptr ? "" : text;
    if (value == "silent=1") return true;
    if (value.empty() || value == "silent=0") return false;
    std::fprintf(stderr, "fake libnccl: SLUICE_FAKE_NCCL=%s is none\n", text);
    std::abort();
  }();
  return silent;
}

}  // namespace sluice::fake_nccl
