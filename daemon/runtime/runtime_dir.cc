#include "daemon/runtime/runtime_dir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "proto/base/status.h"
#include "proto/base/user_map.h"

namespace sluice::daemon {
namespace {

// Returns whether the locked `file` is the one at `path`. An ending daemon
// removes its file before it unlocks it, so a locked file may be a removed one.
bool IsStillAt(const UniqueFd& file, const std::string& path) {
  struct stat held, found;
  return fstat(file.get(), &held) == 0 && lstat(path.c_str(), &found) == 0 &&
         held.st_dev == found.st_dev && held.st_ino == found.st_ino;
}

// In a user namespace that maps one user, root and other users look alike. A
// folder counts as root's if its parent is not writable by all: true for /tmp
// and /home, false for another user's folder in /tmp.
bool CountsAsRoots(const std::filesystem::path& folder, uid_t owner,
                   const UserMap& users) {
  struct stat above;
  return users.mapped == 1 && users.MayBeUnmapped(owner) &&
         lstat(folder.parent_path().c_str(), &above) == 0 &&
         (above.st_mode & S_IWOTH) == 0;
}

}  // namespace

absl::Status CheckOwnDirectory(const std::string& directory,
                               const std::string& what,
                               const std::string& chosen_by) {
  const auto not_own = [&](const std::string& why) {
    return absl::InvalidArgumentError(
        fmt::format("the {} {} is not safe: {}; choose another with {}", what,
                    directory, why, chosen_by));
  };
  std::error_code error;
  const std::filesystem::path path =
      std::filesystem::canonical(directory, error);
  struct stat info;
  if (error || lstat(path.c_str(), &info) != 0) {
    return ErrnoStatus(error ? error.value() : errno, "look at " + directory);
  }
  if (info.st_uid != geteuid()) {
    return not_own(fmt::format("it belongs to user {}, sluiced runs as user {}",
                               info.st_uid, geteuid()));
  }
  if ((info.st_mode & 022) != 0) {
    return not_own("others may write to it (chmod go-w)");
  }
  const UserMap users = UserMap::OfThisProcess();
  for (auto above = path.parent_path(); above != above.root_path();
       above = above.parent_path()) {
    if (lstat(above.c_str(), &info) != 0) {
      return ErrnoStatus(errno, "look at " + above.string());
    }
    if (info.st_uid != 0 && info.st_uid != geteuid() &&
        !CountsAsRoots(above, info.st_uid, users)) {
      return not_own(fmt::format("{} belongs to {}, who could replace it",
                                 above.string(),
                                 users.MayBeUnmapped(info.st_uid)
                                     ? "a user that this namespace does not map"
                                     : fmt::format("user {}", info.st_uid)));
    }
    if ((info.st_mode & S_IWOTH) != 0 && (info.st_mode & S_ISVTX) == 0) {
      return not_own(fmt::format("everybody may write to {}, and so replace it",
                                 above.string()));
    }
  }
  return absl::OkStatus();
}

absl::Status MakeOwnDirectory(const std::string& directory,
                              const std::string& what,
                              const std::string& chosen_by) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    // Every user may enter the folder, whatever the umask is: the sockets in it
    // have their own modes. No other user may read it, because a user that may
    // read a folder may lock it, and no daemon would start.
    const mode_t before = umask(066);
    std::filesystem::create_directories(directory, error);
    umask(before);
    if (error) {
      return absl::InvalidArgumentError(
          fmt::format("cannot make the {} {}: {}; choose another with {}", what,
                      directory, error.message(), chosen_by));
    }
  }
  return CheckOwnDirectory(directory, what, chosen_by);
}

absl::StatusOr<RuntimeLock> RuntimeLock::Take(const std::string& directory,
                                              const Of& of) {
  SLUICE_RETURN_IF_ERROR(
      MakeOwnDirectory(directory, "runtime directory", "--runtime-dir"));
  const std::string path = directory + "/" + of.file;
  const auto taken = [&] {
    return absl::AlreadyExistsError(fmt::format(
        "another {} runs in {}: stop it, or use another --runtime-dir",
        of.program, directory));
  };
  UniqueFd folder;
  if (of.locks_folder) {
    folder =
        UniqueFd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder) return ErrnoStatus(errno, fmt::format("open {}", directory));
    // Some network file systems cannot lock folders: the file's lock suffices.
    if (flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      return taken();
    }
  }
  while (true) {  // repeats only if another daemon ended just now
    UniqueFd lock(
        open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!lock) return ErrnoStatus(errno, fmt::format("open {}", path));
    if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return taken();
    if (IsStillAt(lock, path)) {
      return RuntimeLock(path, std::move(lock), std::move(folder));
    }
  }
}

void RuntimeLock::Remove() {
  if (held_) unlink(path_.c_str());
}

void OwnedFolder::Remove() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  path_.clear();
}

}  // namespace sluice::daemon
