#include "daemon/runtime_dir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// An ending daemon removes the file while it still holds it: who opened it
// before and gets it now holds a file that nobody else will find.
bool IsStillAt(const UniqueFd& file, const std::string& path) {
  struct stat held, found;
  return fstat(file.get(), &held) == 0 && stat(path.c_str(), &found) == 0 &&
         held.st_dev == found.st_dev && held.st_ino == found.st_ino;
}

}  // namespace

absl::StatusOr<RuntimeLock> RuntimeLock::Take(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::InvalidArgumentError(
        fmt::format("cannot make the runtime directory {}: {}; choose another "
                    "with --runtime-dir",
                    directory, error.message()));
  }
  const std::string path = directory + "/lock";
  while (true) {  // again only when another daemon ended just now
    UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!lock) return ErrnoStatus(errno, fmt::format("open {}", path));
    if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      return absl::AlreadyExistsError(
          fmt::format("another sluiced runs in {}: stop it, or use another "
                      "--runtime-dir",
                      directory));
    }
    if (IsStillAt(lock, path)) return RuntimeLock(path, std::move(lock));
  }
}

RuntimeLock::~RuntimeLock() {
  if (held_) unlink(path_.c_str());
}

absl::StatusOr<OwnedFolder> TemporaryRuntimeDir() {
  std::error_code error;
  std::string path =
      (std::filesystem::temp_directory_path(error) / "sluiced.XXXXXX").string();
  if (error || mkdtemp(path.data()) == nullptr) {
    return ErrnoStatus(error ? error.value() : errno,
                       "make a temporary folder " + path);
  }
  OwnedFolder folder;
  folder.Own(path);
  return folder;
}

OwnedFolder::~OwnedFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

OwnedFolder::OwnedFolder(OwnedFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})) {}

}  // namespace sluice::daemon
