#include "proto/base/shortage.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

#include "absl/strings/cord.h"

namespace sluice {
namespace {

constexpr char kUrl[] = "sluice/shortage";
constexpr char kAdvisedUrl[] = "sluice/advised";

// Indexed by Shortage.
constexpr std::array kNames = {"none", "gpu_memory", "host_memory", "disk",
                               "open_files"};

}  // namespace

const char* Name(Shortage shortage) {
  const auto at = static_cast<size_t>(shortage);
  return at < kNames.size() ? kNames[at] : kNames[0];
}

std::optional<Shortage> ShortageNamed(std::string_view name) {
  const auto at = std::find(kNames.begin(), kNames.end(), name);
  if (at == kNames.end()) return std::nullopt;
  return static_cast<Shortage>(at - kNames.begin());
}

absl::Status ShortOf(Shortage shortage, std::string_view message) {
  return Mark(absl::ResourceExhaustedError(std::string(message)), shortage);
}

absl::Status Mark(absl::Status status, Shortage shortage) {
  if (status.ok() || shortage == Shortage::kNone ||
      ShortageOf(status) != Shortage::kNone) {
    return status;
  }
  status.SetPayload(kUrl, absl::Cord(std::string(Name(shortage))));
  return status;
}

Shortage ShortageOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kUrl);
  if (!payload.has_value()) return Shortage::kNone;
  return ShortageNamed(std::string(*payload)).value_or(Shortage::kNone);
}

absl::Status Advised(absl::Status status) {
  status.SetPayload(kAdvisedUrl, absl::Cord(std::string("1")));
  return status;
}

bool IsAdvised(const absl::Status& status) {
  return status.GetPayload(kAdvisedUrl).has_value();
}

Shortage ShortageOfErrno(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return Shortage::kDisk;
    case EMFILE:
    case ENFILE:
      return Shortage::kOpenFiles;
    case ENOMEM:
      return Shortage::kHostMemory;
    default:
      return Shortage::kNone;
  }
}

bool IsOutOfMemory(const absl::Status& status) {
  const Shortage shortage = ShortageOf(status);
  return shortage == Shortage::kGpuMemory || shortage == Shortage::kHostMemory;
}

}  // namespace sluice
