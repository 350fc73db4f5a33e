// How a run ended, and how that becomes an exit status.
//
// A Status says what happened; these helpers add the two things a launcher
// must know and a message cannot tell: that the run did not fit (and which
// memory ran out), and that this rank only failed because another one did.
// Both travel as Status payloads, so every layer in between just returns.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace sluice::train {

// Exit statuses of sluice-train.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFault = 1;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitDoesNotFit = 3;

// What did not fit; the names of the report's `limited_by`.
inline constexpr char kGpuMemory[] = "gpu_memory";
inline constexpr char kHostMemory[] = "host_memory";

// ResourceExhausted, marked with the memory that ran out.
absl::Status DoesNotFit(std::string_view limited_by, std::string_view message);
absl::Status DoesNotFit(std::string_view limited_by,
                        const absl::Status& status);  // its message
// InvalidArgument: the user can fix it.
absl::Status BadInput(std::string_view message);
// Marks a fault that another rank's end caused.
absl::Status CausedByPeer(absl::Status status);

// "none" when the status is not a DoesNotFit.
std::string LimitedBy(const absl::Status& status);
bool IsCausedByPeer(const absl::Status& status);
int ExitCode(const absl::Status& status);

}  // namespace sluice::train
