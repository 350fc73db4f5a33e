#include "client/train/launch/outcome.h"

#include <fmt/format.h>

#include <utility>

#include "absl/strings/cord.h"
#include "proto/base/shortage.h"

namespace sluice::train {
namespace {

// Returns what to do about a shortage. A streamed step's GPU memory grows with
// its chunk size, and its host memory with the sequence, as ALST's does. The
// other methods keep activations on the GPU only.
const char* AdviceFor(Shortage shortage, std::optional<Method> method) {
  switch (shortage) {
    case Shortage::kGpuMemory:
      if (!method) return "give a smaller --hbm, or take another GPU";
      return method == Method::kSluice
                 ? "take a smaller --chunk, keep less, raise --hbm, or take "
                   "more --ranks"
                 : "shorten --seq-len, raise --hbm, or take more --ranks";
    case Shortage::kHostMemory:
      return method == Method::kSluice || method == Method::kAlst
                 ? "shorten --seq-len, raise --host if it was given, or free "
                   "memory of this machine"
                 : "raise --host if it was given, or free memory of this "
                   "machine";
    case Shortage::kDisk:
      return "free some space there, or name a folder that has more";
    case Shortage::kOpenFiles:
      return "raise the limit with ulimit -n";
    case Shortage::kNone:
      break;
  }
  return "";
}

}  // namespace

absl::Status DoesNotFit(std::string_view limited_by, std::string_view message) {
  return Advised(
      ShortOf(ShortageNamed(limited_by).value_or(Shortage::kNone), message));
}

absl::Status BadInput(std::string_view message) {
  return absl::InvalidArgumentError(std::string(message));
}

absl::Status BadInput(std::string_view message, int error) {
  return Mark(BadInput(message), ShortageOfErrno(error));
}

absl::Status WithAdvice(const absl::Status& status,
                        std::optional<Method> method) {
  const Shortage shortage = ShortageOf(status);
  if (shortage == Shortage::kNone || IsAdvised(status)) {
    return status;
  }
  absl::Status advised(status.code(),
                       fmt::format("{}; {}", std::string(status.message()),
                                   AdviceFor(shortage, method)));
  status.ForEachPayload([&](auto url, const absl::Cord& payload) {
    advised.SetPayload(url, payload);
  });
  return Advised(std::move(advised));
}

absl::Status AsBadInput(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kUnavailable ||
      ShortageOf(status) != Shortage::kNone) {
    return status;
  }
  return absl::NotFoundError(std::string(status.message()));
}

std::string LimitedBy(const absl::Status& status) {
  return Name(ShortageOf(status));
}

int ExitCode(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  switch (ShortageOf(status)) {
    case Shortage::kGpuMemory:
    case Shortage::kHostMemory:
      return kExitDoesNotFit;
    case Shortage::kDisk:
      return kExitDiskFull;
    case Shortage::kOpenFiles:
      return kExitOpenFiles;
    case Shortage::kNone:
      break;
  }
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kOutOfRange:
      return kExitBadInput;
    default:
      return kExitFault;
  }
}

}  // namespace sluice::train
