#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/escaping.h"
#include "proto/base/status.h"
#include "tests/fuzz/readers.h"

namespace sluice::fuzz {
namespace {

// The longest complaint quotes a value of 256 bytes, all of them escaped.
constexpr size_t kLongestComplaint = 2000;

}  // namespace

void CheckLine(std::string_view line) {
  const bool clear = !line.empty() && line.size() < kLongestComplaint &&
                     std::ranges::all_of(line, [](char c) {
                       return static_cast<unsigned char>(c) >= 0x20;
                     });
  if (clear) return;
  std::fprintf(stderr,
               "a message is empty, too long or not one line (%zu bytes): %s\n",
               line.size(), absl::CHexEscape(std::string(line)).c_str());
  std::abort();
}

void CheckComplaint(const absl::Status& status) {
  SLUICE_CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CheckLine(std::string(status.message()));
}

}  // namespace sluice::fuzz
