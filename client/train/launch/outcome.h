// How a run ended, and its exit status.
//
// A Status says what happened, what ran out (proto/base/shortage.h), and
// whether this rank failed only because another one did
// (proto/base/peer_fault.h). The last two are Status payloads, so the layers in
// between just return the Status. The texts for users are added here.
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "client/train/launch/options.h"

namespace sluice::train {

// Exit statuses of sluice-train.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFault = 1;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitDoesNotFit = 3;  // GPU or host memory ran out
inline constexpr int kExitDiskFull = 4;
inline constexpr int kExitOpenFiles = 5;
inline constexpr int kExitInterrupted = 130;  // as a shell reports SIGINT

// What did not fit: the values of the report's `limited_by`.
inline constexpr char kGpuMemory[] = "gpu_memory";
inline constexpr char kHostMemory[] = "host_memory";

// Returns ResourceExhausted, marked with the memory that ran out. The message
// already says what to do, so WithAdvice does not change it.
absl::Status DoesNotFit(std::string_view limited_by, std::string_view message);
// Returns InvalidArgument: the user can fix it.
absl::Status BadInput(std::string_view message);
// Returns BadInput after a failed system call, marked with what ran out if
// `error` says so.
absl::Status BadInput(std::string_view message, int error);
// Appends to the message what to do about a shortage, unless it already says
// so. `method` is the method of a training: a shorter sequence is advised only
// if the memory that ran out grows with the sequence.
absl::Status WithAdvice(const absl::Status& status,
                        std::optional<Method> method = std::nullopt);
// Turns Unavailable (no daemon) into NotFound, which the user can fix. Leaves a
// shortage unchanged.
absl::Status AsBadInput(const absl::Status& status);

// Returns the name of what ran out, or "none".
std::string LimitedBy(const absl::Status& status);
int ExitCode(const absl::Status& status);

}  // namespace sluice::train
