// The resource that ran out.
//
// ResourceExhausted alone does not distinguish a full disk from a full GPU, and
// the remedies differ. So the code that knows the resource marks its status,
// the mark travels with the status (through Annotate and over the session
// socket), and code that chooses a remedy reads the mark, never the status
// code.
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string_view>

#include "absl/status/status.h"

namespace sluice {

enum class Shortage { kNone, kGpuMemory, kHostMemory, kDisk, kOpenFiles };

// "none", "gpu_memory", "host_memory", "disk", "open_files": the words that
// reports use.
const char* Name(Shortage shortage);
// Returns nullopt for an unknown word.
std::optional<Shortage> ShortageNamed(std::string_view name);

// Returns a marked ResourceExhausted.
absl::Status ShortOf(Shortage shortage, std::string_view message);
// Returns `status` with the mark. An OK or already marked status is unchanged.
absl::Status Mark(absl::Status status, Shortage shortage);
// Returns kNone if `status` is not marked.
Shortage ShortageOf(const absl::Status& status);
// The resource of an errno: ENOSPC and EDQUOT mean a disk, EMFILE and ENFILE
// open files, ENOMEM ordinary memory. ENOSPC of a memfd means host memory: its
// caller marks that.
Shortage ShortageOfErrno(int error);
// Marks that the message of `status` has the remedy, so that no caller adds
// one.
absl::Status Advised(absl::Status status);
bool IsAdvised(const absl::Status& status);
// Returns whether GPU or host memory ran out, which means "it does not fit".
bool IsOutOfMemory(const absl::Status& status);

}  // namespace sluice
