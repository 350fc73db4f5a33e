// The folder a run saves its checkpoints into: one run's, and one process's
// at a time.
//
//   checkpoint-6        whole
//   checkpoint-9.tmp    being written, or being removed
//   checkpoint-6.old    the one of the same step, until the new one is there
//
// Guarantees: what bears a checkpoint's own name was whole when it got it. A
// claimed folder holds nothing of another run, and nothing of this run's that
// is newer than where it goes on from; so the newest in it is always the one
// to resume. The claim ends with the process, however it ends.
// Not guaranteed: that a file system without flock tells two processes apart.
// Thread safety: one thread, of rank 0.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/train/checkpoint/trainer_state.h"
#include "proto/base/unique_fd.h"

namespace sluice::train {

// InvalidArgument: no checkpoint could be written there. Leaves nothing new,
// and touches nothing that others may be making.
absl::Status CheckSaveFolder(const std::string& folder);

class SaveFolder {
 public:
  ~SaveFolder();
  // Makes the folder; one that stays empty goes with the claim.
  // `goes_on_from`: what the run resumed, null for a new
  // one. InvalidArgument: another process saves into it, or it is not this
  // run's to save into; says what to do.
  static absl::StatusOr<std::unique_ptr<SaveFolder>> Claim(
      const std::string& folder, const RunIdentity& identity,
      const StateFile* goes_on_from);

  // Where the checkpoint of this step is written, by all ranks.
  static std::string Temporary(const std::string& folder, int64_t step);

  // Makes that folder, empty.
  absl::Status Begin(int64_t step);
  // Puts it in its place, over one of the same step.
  absl::Status Commit(int64_t step);
  // After a failure: gives its space back.
  void Abandon(int64_t step);
  // Removes all but the newest `keep` whole ones of this run. Only after a
  // Commit, so that what the run came from stays until a newer one is whole.
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
