// How a run ended, and how that becomes an exit status.
//
// A Status says what happened, what ran out (proto/base/shortage.h), and
// whether this rank only failed because another one did
// (proto/base/peer_fault.h). These travel as Status payloads, so every
// layer in between just returns; the words for people are added here.
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
inline constexpr int kExitInterrupted = 130;  // as a shell shows SIGINT's

// What did not fit; the names of the report's `limited_by`.
inline constexpr char kGpuMemory[] = "gpu_memory";
inline constexpr char kHostMemory[] = "host_memory";

// ResourceExhausted, marked with the memory that ran out. The message says
// what to do: WithAdvice leaves it as it is.
absl::Status DoesNotFit(std::string_view limited_by, std::string_view message);
// InvalidArgument: the user can fix it.
absl::Status BadInput(std::string_view message);
// The same after a system call: what ran out, if that is why, is marked.
absl::Status BadInput(std::string_view message, int error);
// What to do when this ran out, once, at the end of the message. `method`: of
// the training that ran out, if it was one; a shorter sequence is named where
// that memory grows with it.
absl::Status WithAdvice(const absl::Status& status,
                        std::optional<Method> method = std::nullopt);
// A daemon that is not there is the user's to fix.
absl::Status AsBadInput(const absl::Status& status);

// The word for what ran out: "none" when nothing did.
std::string LimitedBy(const absl::Status& status);
int ExitCode(const absl::Status& status);

}  // namespace sluice::train
