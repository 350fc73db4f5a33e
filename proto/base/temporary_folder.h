#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace sluice {

// A new folder in $TMPDIR or /tmp with mode 0700. The destructor removes the
// folder and its contents.
class TemporaryFolder {
 public:
  static absl::StatusOr<TemporaryFolder> Make(const std::string& prefix);
  TemporaryFolder(TemporaryFolder&& other) noexcept
      : path_(std::exchange(other.path_, "")) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;  // empty: moved from
};

}  // namespace sluice
