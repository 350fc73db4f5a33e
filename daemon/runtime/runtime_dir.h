// A daemon's files in its runtime directory, which are removed however its
// start or its service ends.
//
// Thread safety: none needed; each object belongs to one thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// Whether this process may trust what is at a path below `directory`: it is
// this user's, only this user may write to it, and only root and this user can
// put something else in its place (each folder above belongs to one of them,
// and is either sticky or not writable by all). In a user namespace that maps
// one user, a folder of unmapped users counts as root's if its parent is not
// writable by all. Else InvalidArgument, which says what it is and by which
// setting another is chosen.
absl::Status CheckOwnDirectory(const std::string& directory,
                               const std::string& what = "runtime directory",
                               const std::string& chosen_by = "--runtime-dir");

// Makes the directory if need be, and checks it in the same way.
absl::Status MakeOwnDirectory(const std::string& directory,
                              const std::string& what,
                              const std::string& chosen_by);

// A locked file in `directory`: no other daemon serves in this directory. The
// kernel releases the lock however the process ends. The daemon's lock is on
// the folder itself too, so it holds even if the file was removed.
class RuntimeLock {
 public:
  // Which file, and which program it stands for.
  struct Of {
    std::string file = "lock";
    std::string program = "sluiced";
    bool locks_folder = true;  // of two programs in one folder only one can
  };
  // Makes the directory if need be. InvalidArgument: it cannot be made, or is
  // not this user's own (CheckOwnDirectory); AlreadyExists: another daemon
  // holds it.
  static absl::StatusOr<RuntimeLock> Take(const std::string& directory);
  static absl::StatusOr<RuntimeLock> Take(const std::string& directory,
                                          const Of& of);
  ~RuntimeLock() { Remove(); }
  void Remove();  // the file; the lock is held until the process ends
  RuntimeLock(RuntimeLock&&) = default;

 private:
  RuntimeLock(std::string path, UniqueFd held, UniqueFd folder)
      : path_(std::move(path)),
        folder_(std::move(folder)),
        held_(std::move(held)) {}

  std::string path_;
  UniqueFd folder_;
  UniqueFd held_;  // closed after the file is gone
};

// A folder that is removed with its owner.
class OwnedFolder {
 public:
  OwnedFolder() = default;
  ~OwnedFolder() { Remove(); }
  OwnedFolder(OwnedFolder&& other) noexcept;

  void Own(const std::string& path) { path_ = path; }
  const std::string& path() const { return path_; }
  void Remove();  // owns no folder afterwards

 private:
  std::string path_;  // empty: owns none
};

// An empty folder below the system's temporary one, for this user only.
absl::StatusOr<OwnedFolder> TemporaryRuntimeDir();

}  // namespace sluice::daemon
