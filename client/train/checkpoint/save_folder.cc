#include "client/train/checkpoint/save_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "client/train/launch/outcome.h"
#include "proto/base/status.h"
#include "proto/base/whole_io.h"

namespace sluice::train {
namespace fs = std::filesystem;

absl::Status CheckSaveFolder(const std::string& folder) {
  // Only making a folder shows whether it can be made: permissions bind no root
  // and say nothing about a full or virtual file system. The unique name in the
  // deepest existing folder touches nothing that other processes are making.
  std::error_code error;
  fs::path at = fs::absolute(folder, error);
  while (!fs::exists(at, error) && at != at.parent_path()) {
    at = at.parent_path();
  }
  std::string probe = (at / ".sluice-XXXXXX").string();
  if (mkdtemp(probe.data()) == nullptr) {
    const int why = errno;
    return BadInput(
        fmt::format("--save {}: {}; name a folder that can be written", folder,
                    std::strerror(why)),
        why);
  }
  fs::remove(probe, error);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SaveFolder>> SaveFolder::Claim(
    const std::string& folder, const RunIdentity& identity,
    const StateFile* goes_on_from) {
  std::error_code error;
  const bool made = fs::create_directories(folder, error);
  if (error) {
    return BadInput(fmt::format("--save {}: {}; name a folder that can be "
                                "written",
                                folder, error.message()),
                    error.value());
  }
  std::unique_ptr<SaveFolder> claimed(new SaveFolder());
  claimed->folder_ = folder;
  claimed->made_ = made;
  claimed->identity_ = identity;
  SLUICE_RETURN_IF_ERROR(claimed->Lock());
  claimed->CleanUp();
  SLUICE_RETURN_IF_ERROR(claimed->CheckContent(goes_on_from));
  return claimed;
}

SaveFolder::~SaveFolder() {
  std::error_code ignored;
  if (made_) fs::remove(folder_, ignored);  // fails if it is not empty
}

absl::Status SaveFolder::Lock() {
  lock_ = UniqueFd(open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_) return ErrnoStatus(errno, "--save " + folder_);
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
    return absl::OkStatus();  // locked, or the file system has no flock
  }
  return BadInput(
      "--save {}: another run is saving into it now: name another folder",
      folder_);
}

// Removes what processes left that died while they saved, and puts a replaced
// checkpoint back if the process died before it renamed the new one.
void SaveFolder::CleanUp() {
  std::error_code error;
  std::vector<fs::path> unfinished, replaced;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("checkpoint-")) continue;
    if (entry.path().extension() == ".tmp") unfinished.push_back(entry.path());
    if (entry.path().extension() == ".old") replaced.push_back(entry.path());
  }
  for (const fs::path& path : unfinished) fs::remove_all(path, error);
  for (const fs::path& path : replaced) {
    fs::path place = path;
    place.replace_extension();
    if (fs::exists(place, error)) {
      fs::remove_all(path, error);
    } else {
      fs::rename(path, place, error);
    }
  }
}

absl::Status SaveFolder::CheckContent(const StateFile* goes_on_from) const {
  for (const int64_t step : StepsIn(folder_)) {
    const auto state = ReadWhole(CheckpointName(folder_, step));
    if (absl::IsOutOfRange(state.status())) return state.status();
    if (!state.ok()) continue;  // no run can resume it
    const std::string& run = state->identity.run;
    // If the resumed checkpoint has no id, others may be this run's too.
    const bool former = run.empty() && goes_on_from != nullptr;
    if (run != identity_.run && !former) {
      return BadInput(
          "--save {}: it holds checkpoint-{} of {}, this is run {}: name "
          "another folder, or go on with that run by --resume {}",
          folder_, step, run.empty() ? "another run" : "run " + run,
          identity_.run, folder_);
    }
    if (goes_on_from != nullptr && step > goes_on_from->step) {
      return BadInput(
          "--save {}: it holds checkpoint-{} of this run, which goes on from "
          "step {} here: name another folder, or move that checkpoint away",
          folder_, step, goes_on_from->step);
    }
  }
  return absl::OkStatus();
}

std::string SaveFolder::Temporary(const std::string& folder, int64_t step) {
  return CheckpointName(folder, step) + ".tmp";
}

absl::Status SaveFolder::Begin(int64_t step) {
  const std::string temporary = Temporary(folder_, step);
  std::error_code error;
  fs::remove_all(temporary, error);
  fs::create_directories(temporary, error);
  if (error) return ErrnoStatus(error.value(), "make " + temporary);
  return absl::OkStatus();
}

absl::Status SaveFolder::Commit(int64_t step) {
  const std::string temporary = Temporary(folder_, step);
  SLUICE_RETURN_IF_ERROR(SyncFolder(temporary));
  const std::string place = CheckpointName(folder_, step);
  const std::string old = place + ".old";
  std::error_code error, ignored;
  fs::remove_all(old, ignored);
  // A folder cannot be renamed over one that is not empty.
  const bool replaces = fs::exists(place, ignored);
  if (replaces) fs::rename(place, old, error);
  if (!error) {
    fs::rename(temporary, place, error);
    if (error && replaces) fs::rename(old, place, ignored);
  }
  if (error) {
    return ErrnoStatus(error.value(),
                       fmt::format("rename {} to {}", temporary, place));
  }
  fs::remove_all(old, ignored);
  return SyncFolder(folder_);
}

void SaveFolder::Abandon(int64_t step) {
  std::error_code ignored;
  fs::remove_all(Temporary(folder_, step), ignored);
}

void SaveFolder::Rotate(int64_t keep) {
  if (keep <= 0) return;
  int64_t whole = 0;
  for (const int64_t step : StepsIn(folder_)) {
    const std::string name = CheckpointName(folder_, step);
    const auto state = ReadState(name);
    if (!state.ok() || state->identity.run != identity_.run) continue;
    if (ReadWhole(name).ok() && ++whole <= keep) continue;
    if (whole == 0) continue;  // incomplete, but newer than every complete one
    // Renamed first, because a half removed checkpoint must not have its name.
    std::error_code error;
    const std::string gone = Temporary(folder_, step);
    fs::rename(name, gone, error);
    if (!error) fs::remove_all(gone, error);
  }
}

}  // namespace sluice::train
