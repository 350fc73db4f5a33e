// What a daemon puts into its runtime directory, and takes away again however
// its start or its service ends.
//
// Thread safety: none needed; each object belongs to one thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// `directory`/lock, held: no other daemon serves in this directory. The
// kernel gives it back however the process ends.
class RuntimeLock {
 public:
  // Makes the directory if need be. InvalidArgument: it cannot be made;
  // AlreadyExists: another daemon holds it.
  static absl::StatusOr<RuntimeLock> Take(const std::string& directory);
  ~RuntimeLock();  // removes the file
  RuntimeLock(RuntimeLock&&) = default;

 private:
  RuntimeLock(std::string path, UniqueFd held)
      : path_(std::move(path)), held_(std::move(held)) {}

  std::string path_;
  UniqueFd held_;  // closed after the file is gone
};

// A folder that goes, with all that is in it, when its owner does.
class OwnedFolder {
 public:
  OwnedFolder() = default;
  ~OwnedFolder();
  OwnedFolder(OwnedFolder&& other) noexcept;

  void Own(const std::string& path) { path_ = path; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;  // empty: owns none
};

// An empty folder below the system's temporary one, for this user only.
absl::StatusOr<OwnedFolder> TemporaryRuntimeDir();

}  // namespace sluice::daemon
