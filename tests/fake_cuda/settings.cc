#include "tests/fake_cuda/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <sstream>

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

namespace {

std::string UuidText(const Settings& settings, int gpu) {
  return fmt::format(
      "{0}-{1:02x}{1:02x}{1:02x}{1:02x}-{1:02x}{1:02x}-{1:02x}{1:02x}-"
      "{1:02x}{1:02x}-{1:02x}{1:02x}{1:02x}{1:02x}{1:02x}{2:02x}",
      settings.Get("mig") != 0 ? "MIG" : "GPU", kUuidByte, gpu);
}

// Returns -1 if no GPU or several GPUs have this name.
int GpuNamed(const Settings& settings, const std::vector<int>& all,
             const std::string& name) {
  char* end = nullptr;
  const int64_t number = std::strtoll(name.c_str(), &end, 10);
  if (!name.empty() && *end == '\0') {
    return number >= 0 && number < std::ssize(all)
               ? all[static_cast<size_t>(number)]
               : -1;
  }
  int found = -1;
  for (const int gpu : all) {
    if (!UuidText(settings, gpu).starts_with(name)) continue;
    if (found >= 0) return -1;
    found = gpu;
  }
  return found;
}

// Returns the GPUs of `all` that CUDA_VISIBLE_DEVICES lists. As in CUDA, the
// first entry that does not exist hides itself and all later ones.
std::vector<int> Listed(const Settings& settings, const std::vector<int>& all) {
  const char* const list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) return all;
  std::vector<int> listed;
  std::istringstream rest(list);
  for (std::string name; std::getline(rest, name, ',');) {
    const int gpu = GpuNamed(settings, all, name);
    if (gpu < 0) break;
    listed.push_back(gpu);
  }
  return listed;
}

}  // namespace

std::vector<int> VisibleGpus(const Settings& settings) {
  std::vector<int> all(static_cast<size_t>(settings.Get("gpus")));
  std::iota(all.begin(), all.end(), 0);
  const char* const order = std::getenv("CUDA_DEVICE_ORDER");
  if (settings.Get("fastest_last") != 0 &&
      (order == nullptr || std::string_view(order) != "PCI_BUS_ID")) {
    std::reverse(all.begin(), all.end());
  }
  std::vector<int> visible = Listed(settings, all);
  if (settings.Get("mig") != 0 && visible.size() > 1) visible.resize(1);
  return visible;
}

}  // namespace sluice::fake_cuda
