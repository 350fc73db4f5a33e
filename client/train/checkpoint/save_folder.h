// The folder into which a run saves its checkpoints. It belongs to one run, and
// to one process at a time.
//
//   checkpoint-6        complete
//   checkpoint-9.tmp    being written, or being removed
//   checkpoint-6.old    the former one of this step, until the new one is there
//
// Guarantees: a folder with a checkpoint's name was complete when it got the
// name. A claimed folder has no checkpoint of another run, and none of this run
// that is newer than the one it resumed, so its newest is always the one to
// resume. The claim ends with the process. Not guaranteed: exclusion on a file
// system without flock.
// Thread safety: one thread, of rank 0.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/train/checkpoint/checkpoint_files.h"
#include "proto/base/unique_fd.h"

namespace sluice::train {

// InvalidArgument: checkpoints cannot be written there. Leaves nothing behind,
// and does not touch what other processes are making.
absl::Status CheckSaveFolder(const std::string& folder);

class SaveFolder {
 public:
  ~SaveFolder();
  // Makes the folder if it does not exist (and removes it when the claim ends,
  // if it is empty then). `goes_on_from` is the resumed checkpoint, null for a
  // new run. InvalidArgument, with what to do: another process saves into the
  // folder, or it belongs to another run.
  static absl::StatusOr<std::unique_ptr<SaveFolder>> Claim(
      const std::string& folder, const RunIdentity& identity,
      const StateFile* goes_on_from);

  // Returns the folder into which all ranks write the checkpoint of this step.
  static std::string Temporary(const std::string& folder, int64_t step);

  // Makes the temporary folder.
  absl::Status Begin(int64_t step);
  // Renames it to the checkpoint's name, in place of an existing one.
  absl::Status Commit(int64_t step);
  // Removes the temporary folder after a failure.
  void Abandon(int64_t step);
  // Removes all but the newest `keep` complete checkpoints of this run. Only
  // after a Commit, so that the resumed checkpoint stays until there is a newer
  // one.
  void Rotate(int64_t keep);

 private:
  SaveFolder() = default;
  absl::Status Lock();
  void CleanUp();
  absl::Status CheckContent(const StateFile* goes_on_from) const;

  std::string folder_;
  RunIdentity identity_;
  bool made_ = false;
  UniqueFd lock_;
};

}  // namespace sluice::train
