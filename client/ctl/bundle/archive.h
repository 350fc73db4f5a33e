// Packs text files into one archive.
// Thread safety: safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::ctl {

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

// Returns a tar archive of files in a folder `name`, compressed by the system's
// gzip. Names have at most 100 bytes, as in POSIX's ustar.
absl::StatusOr<std::string> MakeTarGz(const std::string& name,
                                      const NamedTexts& files);

}  // namespace sluice::ctl
