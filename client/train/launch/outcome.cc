#include "client/train/launch/outcome.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/cord.h"
#include "proto/base/peer_fault.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

using Json = nlohmann::ordered_json;

// A streamed step's GPU memory grows with its chunk size. Its host memory grows
// with the sequence, and so does ALST's. All other methods keep activations on
// the GPU only.
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

absl::Status BadInput(std::string_view message) {
  return absl::InvalidArgumentError(std::string(message));
}

absl::Status BadInputOfErrno(int error, std::string_view message) {
  return Mark(absl::InvalidArgumentError(std::string(message)),
              ShortageOfErrno(error));
}

absl::Status WithAdvice(const absl::Status& status,
                        std::optional<Method> method) {
  const Shortage shortage = ShortageOf(status);
  if (shortage == Shortage::kNone || IsAdvised(status)) return status;
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
  if (IsOutOfMemory(status)) return kExitDoesNotFit;
  if (ShortageOf(status) == Shortage::kDisk) return kExitDiskFull;
  if (ShortageOf(status) == Shortage::kOpenFiles) return kExitOpenFiles;
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

absl::Status WriteResult(const std::string& path, const absl::Status& status,
                         const std::string& report, bool interrupted) {
  const Json json = {{"exit", ExitCode(status)},
                     {"message", std::string(status.message())},
                     {"caused_by_peer", IsCausedByPeer(status)},
                     {"interrupted", interrupted},
                     {"report", report}};
  const std::string temporary = path + ".tmp";
  std::ofstream out(temporary);
  out << json.dump(-1, ' ', false, Json::error_handler_t::replace);
  out.close();
  if (!out || std::rename(temporary.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(errno, "write " + path);
  }
  return absl::OkStatus();
}

absl::StatusOr<RankResult> ReadResult(const std::string& path) {
  std::ifstream in(path);
  if (!in) return absl::NotFoundError("no result at " + path);
  const Json json = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InternalError("broken " + path);
  RankResult result;
  result.exit = json.value("exit", kExitFault);
  result.message = json.value("message", "");
  result.caused_by_peer = json.value("caused_by_peer", false);
  result.interrupted = json.value("interrupted", false);
  result.report = json.value("report", "");
  return result;
}

}  // namespace sluice::train
