// A temporary directory of a test, removed at the end.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace sluice::testing {

// The path, $TMPDIR/sluice-XXXXXX, is short, because the path of a unix socket
// may have at most 107 characters.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(std::string_view name) const {
    return path_ + "/" + std::string(name);
  }

 private:
  std::string path_;
};

}  // namespace sluice::testing
