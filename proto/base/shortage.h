// What ran out.
//
// ResourceExhausted alone does not tell a full disk from a full GPU, and the
// remedies differ. So the place that knows marks its status, the mark travels
// with it (through Annotate and over the session socket), and code that chooses
// a remedy reads the mark, never the status code.
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string_view>

#include "absl/status/status.h"

namespace sluice {

enum class Shortage { kNone, kGpuMemory, kHostMemory, kDisk, kOpenFiles };

// "none", "gpu_memory", "host_memory", "disk", "open_files": the words of
// reports.
const char* Name(Shortage shortage);
// nullopt: no such word.
std::optional<Shortage> ShortageNamed(std::string_view name);

// ResourceExhausted, marked.
absl::Status ShortOf(Shortage shortage, std::string_view message);
// The same fault, marked; an OK or already marked one is left as it is.
absl::Status Mark(absl::Status status, Shortage shortage);
// kNone: not marked.
Shortage ShortageOf(const absl::Status& status);
// What an errno says: ENOSPC and EDQUOT are a disk's, EMFILE and ENFILE open
// files, ENOMEM ordinary memory. A memfd's ENOSPC is host memory: mark it
// there.
Shortage ShortageOfErrno(int error);
// `status` with the remedy in its message, marked so that no caller adds one.
absl::Status Advised(absl::Status status);
bool IsAdvised(const absl::Status& status);
// Memory of either kind: what "it does not fit" means.
bool IsOutOfMemory(const absl::Status& status);

}  // namespace sluice
