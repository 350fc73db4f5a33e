#include "proto/base/temporary_folder.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "proto/base/status.h"

namespace sluice {

absl::StatusOr<TemporaryFolder> TemporaryFolder::Make(
    const std::string& prefix) {
  const char* base = std::getenv("TMPDIR");
  std::string path = fmt::format(
      "{}/{}-XXXXXX", base != nullptr && *base != '\0' ? base : "/tmp", prefix);
  if (mkdtemp(path.data()) == nullptr) {
    return ErrnoStatus(errno, "make a temporary folder " + path);
  }
  return TemporaryFolder(path);
}

TemporaryFolder::~TemporaryFolder() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace sluice
