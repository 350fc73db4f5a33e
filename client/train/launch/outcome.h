// How a run and its ranks ended: exit statuses, advice for users, and the
// result that a rank hands to its launcher.
//
// A Status says what happened, what ran out (proto/base/shortage.h), and
// whether this rank failed only because another one did
// (proto/base/peer_fault.h).
// Thread safety: pure functions; results are files.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "client/train/launch/options.h"

namespace sluice::train {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFault = 1;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitDoesNotFit = 3;  // GPU or host memory ran out
inline constexpr int kExitDiskFull = 4;
inline constexpr int kExitOpenFiles = 5;
inline constexpr int kExitInterrupted = 130;  // as a shell reports SIGINT

// Returns InvalidArgument, for mistakes that the user can fix. The errno of a
// failed system call marks the status with what ran out.
absl::Status BadInput(std::string_view message);
absl::Status BadInputOfErrno(int error, std::string_view message);
template <typename... Args>
absl::Status BadInput(fmt::format_string<Args...> text, Args&&... args) {
  return BadInput(fmt::format(text, std::forward<Args>(args)...));
}
// Appends to the message what to do about a shortage, unless IsAdvised(status).
// `method` is set for a training run: a shorter sequence is advised only if the
// memory that ran out grows with the sequence.
absl::Status WithAdvice(const absl::Status& status,
                        std::optional<Method> method = std::nullopt);
// Turns Unavailable (no daemon) into NotFound, which the user can fix. Leaves a
// shortage unchanged.
absl::Status AsBadInput(const absl::Status& status);

// Returns the name of what ran out, or "none".
std::string LimitedBy(const absl::Status& status);
int ExitCode(const absl::Status& status);

// How one rank ended. Each rank writes one small JSON file, and the launcher
// alone decides what the user sees, because only it knows which rank failed
// first and which ranks only lost a peer.
struct RankResult {
  int exit = 0;
  std::string message;
  bool caused_by_peer = false;
  bool interrupted = false;
  std::string report;  // the JSON to print: the run's or the check's
};
absl::Status WriteResult(const std::string& path, const absl::Status& status,
                         const std::string& report, bool interrupted);
absl::StatusOr<RankResult> ReadResult(const std::string& path);

}  // namespace sluice::train
