// A temporary directory of a test, removed at the end.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace sluice::testing {

// Short (unix socket paths end at 107 characters): $TMPDIR/sluice-XXXXXX.
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
