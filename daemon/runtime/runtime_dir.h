// Checks whether a directory may be trusted, locks it, and removes what this
// process made in it when a start fails or the service ends.
//
// Thread safety: none needed; each object belongs to one thread.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// OK if this process may trust paths below `directory`: it belongs to this
// user, only this user may write to it, and only root and this user can replace
// it (each folder above belongs to one of them, and is sticky or not writable
// by all; README.md has the rule for user namespaces). InvalidArgument names
// `what`, the reason, and `chosen_by`, the setting that names the directory.
absl::Status CheckOwnDirectory(const std::string& directory,
                               const std::string& what = "runtime directory",
                               const std::string& chosen_by = "--runtime-dir");

// Makes the directory if there is none, and checks it (CheckOwnDirectory).
absl::Status MakeOwnDirectory(const std::string& directory,
                              const std::string& what,
                              const std::string& chosen_by);

// A locked file, so that a second process of the program does not serve in the
// directory. The kernel releases the lock however the process ends. The daemon
// also locks the directory itself, in case the file is removed.
class RuntimeLock {
 public:
  struct Of {
    std::string file;
    std::string program;
    bool locks_folder;  // excludes all other programs that lock the folder
  };
  // Makes the directory. InvalidArgument: it cannot be made, or is not safe
  // (CheckOwnDirectory). AlreadyExists: another process has the lock.
  static absl::StatusOr<RuntimeLock> Take(const std::string& directory,
                                          const Of& of = {"lock", "sluiced",
                                                          true});
  ~RuntimeLock() { Remove(); }
  void Remove();  // removes the file; the lock itself stays
  RuntimeLock(RuntimeLock&&) = default;

 private:
  RuntimeLock(std::string path, UniqueFd held, UniqueFd folder)
      : path_(std::move(path)),
        folder_(std::move(folder)),
        held_(std::move(held)) {}

  std::string path_;
  UniqueFd folder_;
  UniqueFd held_;  // locked; closed only after the file is removed
};

class OwnedFolder {
 public:
  OwnedFolder() = default;
  ~OwnedFolder() { Remove(); }
  OwnedFolder(OwnedFolder&& other) noexcept
      : path_(std::exchange(other.path_, {})) {}

  void Own(const std::string& path) { path_ = path; }
  const std::string& path() const { return path_; }
  void Remove();  // then owns no folder

 private:
  std::string path_;  // empty: owns none
};

}  // namespace sluice::daemon
