// A folder's worth of text as one archive.
//
// Thread safety: safe.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::ctl {

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

// A gzipped tar by the system's tar, of files below a folder `name`. Nothing of
// it is left in the temporary folder, however it ends but by SIGKILL.
// Cancelled: `stopped`.
absl::StatusOr<std::string> MakeTarGz(const std::string& name,
                                      const NamedTexts& files,
                                      const std::function<bool()>& stopped);

}  // namespace sluice::ctl
