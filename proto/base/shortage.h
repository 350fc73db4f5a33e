// Marks a status with the resource that ran out.
//
// ResourceExhausted alone does not distinguish a full disk from a full GPU, and
// the remedies differ. The mark travels with the status (through Annotate and
// over the session socket). The mark, never the status code, decides a remedy.
#pragma once

#include <optional>
#include <string_view>

#include "absl/status/status.h"

namespace sluice {

enum class Shortage { kNone, kGpuMemory, kHostMemory, kDisk, kOpenFiles };

// Returns the word that reports use: "none", "gpu_memory", "host_memory",
// "disk", "open_files".
const char* Name(Shortage shortage);
std::optional<Shortage> ShortageNamed(std::string_view name);

absl::Status ShortOf(Shortage shortage, std::string_view message);
// Marks `status` unless it is OK or already marked.
absl::Status Mark(absl::Status status, Shortage shortage);
// Returns kNone if `status` is not marked.
Shortage ShortageOf(const absl::Status& status);
// Returns the resource that an errno means. ENOSPC counts as a disk, so for a
// memfd, where it means host memory, the caller must mark the status itself.
Shortage ShortageOfErrno(int error);
// Returns `status` marked as stating its remedy, so that no caller adds one.
absl::Status Advised(absl::Status status);
bool IsAdvised(const absl::Status& status);
// Returns whether GPU or host memory ran out, so that the job does not fit.
bool IsOutOfMemory(const absl::Status& status);

}  // namespace sluice
