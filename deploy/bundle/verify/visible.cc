#include "deploy/bundle/verify/visible.h"

#include <cstdlib>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace sluice::verify {
namespace {

constexpr char kVariable[] = "CUDA_VISIBLE_DEVICES";

}  // namespace

std::string VisibleList(const std::vector<int>& gpus, const std::string& told) {
  if (told.empty()) return absl::StrJoin(gpus, ",");
  const std::vector<std::string> names = absl::StrSplit(told, ',');
  std::vector<std::string> chosen;
  for (const int gpu : gpus)
    chosen.push_back(names.at(static_cast<size_t>(gpu)));
  return absl::StrJoin(chosen, ",");
}

void ShowOnly(const std::vector<int>& gpus) {
  static const std::string told = [] {
    const char* const text = std::getenv(kVariable);
    return std::string(text != nullptr ? text : "");
  }();
  setenv(kVariable, VisibleList(gpus, told).c_str(), 1);
}

}  // namespace sluice::verify
