#include "tests/fake_cuda/settings.h"

#include <cstdio>
#include <cstdlib>

namespace sluice::fake_cuda {
namespace {

[[noreturn]] void WrongSetting(std::string_view item) {
  std::fprintf(stderr, "fake libcuda: no such setting: '%.*s'\n",
               static_cast<int>(item.size()), item.data());
  std::abort();
}

int64_t Number(std::string_view item, const std::string& text) {
  char* end = nullptr;
  const int64_t value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0') WrongSetting(item);
  return value;
}

void ApplyOne(std::string_view item, Settings& settings) {
  const size_t equals = item.find('=');
  if (equals == std::string_view::npos) WrongSetting(item);
  const std::string key(item.substr(0, equals));
  const std::string value(item.substr(equals + 1));
  if (key == "node") {
    settings.node = value;
  } else if (key == "kernels") {
    settings.kernels = value;
  } else if (key == "nodes") {
    settings.nodes = value;
  } else if (key == "rules") {
    settings.answers = ReadAnswers(value);
  } else if (key == "lose") {
    settings.lose = Number(item, value);
  } else if (key == "hang") {
    const size_t colon = value.find(':');
    if (colon == std::string::npos) WrongSetting(item);
    settings.hangs[value.substr(0, colon)] =
        Number(item, value.substr(colon + 1));
  } else if (key == "fail") {
    const size_t first = value.find(':');
    const size_t second = value.find(':', first + 1);
    if (second == std::string::npos) WrongSetting(item);
    settings.failures[value.substr(0, first)] = {
        Number(item, value.substr(first + 1, second - first - 1)),
        static_cast<int>(Number(item, value.substr(second + 1)))};
  } else if (const auto it = settings.numbers.find(key);
             it != settings.numbers.end()) {
    it->second = Number(item, value);
  } else {
    WrongSetting(item);
  }
}

}  // namespace

void Settings::Apply(std::string_view text) {
  while (!text.empty()) {
    const size_t comma = text.find(',');
    ApplyOne(text.substr(0, comma), *this);
    if (comma == std::string_view::npos) return;
    text.remove_prefix(comma + 1);
  }
}

std::vector<int> VisibleGpus(const Settings& settings) {
  std::vector<int> visible;
  const char* const list = std::getenv("CUDA_VISIBLE_DEVICES");
  const auto gpus = static_cast<int>(settings.Get("gpus"));
  if (list == nullptr) {
    for (int gpu = 0; gpu < gpus; ++gpu) visible.push_back(gpu);
    return visible;
  }
  std::string_view rest = list;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const int64_t gpu = Number(list, std::string(rest.substr(0, comma)));
    // As CUDA: from one that is not there on, none is seen.
    if (gpu < 0 || gpu >= gpus) return visible;
    visible.push_back(static_cast<int>(gpu));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return visible;
}

}  // namespace sluice::fake_cuda
