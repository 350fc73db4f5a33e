// The files of a checkpoint that need no torch: trainer_state.json, keys of
// saved plans, the search for the checkpoint to resume, and the folder of
// saves. Format 1 has no run id and no data fingerprint, and its cursor counts
// sequences of the saved seq_len instead of tokens.
// Thread safety: pure functions on files.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/train/launch/options.h"
#include "planner/stream/settings.h"
#include "proto/base/unique_fd.h"

namespace sluice::train {

struct RunIdentity {
  std::string run;   // 16 hex digits; empty in format 1
  std::string data;  // Corpus::Fingerprint; empty: unknown
  int64_t data_tokens = 0;
};

std::string NewRunId();

struct StateFile {
  int format = 3;
  int64_t step = 0;        // the last completed step
  int64_t next_token = 0;  // index in the corpus of the next sequence's start
  int ranks = 1;
  RunIdentity identity;
  // Format 1 counts sequences of seq_len tokens in place of next_token.
  int64_t next_sequence = 0, seq_len = 1;

  // Returns where the next sequence starts in a corpus of `tokens` tokens.
  int64_t NextToken(int64_t tokens) const;
};

std::string StatePath(const std::string& folder);
// Returns the text with this name, or "" if there is none.
std::string TextField(const nlohmann::ordered_json& json, const char* name);

absl::Status WriteState(const std::string& folder, const RunOptions& options,
                        const StateFile& state);
// InvalidArgument: an incomplete file. OutOfRange: a newer program wrote it.
absl::StatusOr<StateFile> ReadState(const std::string& folder);
// InvalidArgument, with the flag: a flag differs from the saved one.
absl::Status CheckFlags(const std::string& folder, const RunOptions& options);

// Returns the key of a saved plan: runs with equal keys can use the same plan.
// `attention` is the kernel (RankMemory::KernelName), or empty on a simulated
// GPU; `rounds_output` is RoundsOutput of step/stepper.h; `states` is the place
// of the optimizer's states.
std::string PlanKey(const RunOptions& options, int ranks, Bytes hbm,
                    const std::string& attention, bool rounds_output,
                    stream::StatePlace states);
std::string WhyAnotherKey(const std::string& saved, const std::string& wanted);
// Returns nullopt if an older program made the key, or if `key` is not a key.
std::optional<stream::Settings> SettingsOf(const std::string& key);

std::string WeightsFile(const std::string& folder);
std::string OptimizerFile(const std::string& folder, int rank, int ranks);
std::string PlanFile(const std::string& folder, int rank, int ranks);

// Returns folder/checkpoint-<step>.
std::string CheckpointName(const std::string& folder, int64_t step);
// Returns the steps of a folder's checkpoints, newest first, complete or not.
std::vector<int64_t> StepsIn(const std::string& folder);

// Checks that all files that a resumed run needs exist and have the sizes that
// their headers state. InvalidArgument or NotFound names what is wrong. After
// OutOfRange (a newer format) or a marked shortage, the checkpoint may be
// complete.
absl::StatusOr<StateFile> ReadWhole(const std::string& folder);

struct FoundCheckpoint {
  std::string path;
  StateFile state;
  std::string passed_over;  // newer incomplete checkpoints, on one line
};
// Returns the checkpoint `path`, or the newest complete checkpoint in the
// folder `path`. Refuses a folder with checkpoints of several runs.
absl::StatusOr<FoundCheckpoint> FindCheckpoint(const std::string& path);

// Writes a file and syncs it.
absl::Status WriteFile(const std::string& path, const std::string& text);
absl::StatusOr<std::string> ReadFile(const std::string& path);

// InvalidArgument: checkpoints cannot be written there. Leaves no file, and
// does not touch files that other processes are making.
absl::Status CheckSaveFolder(const std::string& folder);

// The folder into which a run saves its checkpoints. It belongs to one run, and
// to one process at a time.
//
//   checkpoint-6        complete
//   checkpoint-9.tmp    being written, or being removed
//   checkpoint-6.old    a replaced checkpoint, until the new one has its name
//
// Guarantees: a folder with a checkpoint's name was complete when it got the
// name. A claimed folder has no checkpoint of another run, and no checkpoint
// newer than the resumed one, so a run always resumes the newest. The claim
// ends with the process. Not guaranteed: exclusion on a file system without
// flock.
// Thread safety: one thread, of rank 0.
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

  absl::Status Begin(int64_t step);
  // Renames the temporary folder, in place of an existing checkpoint.
  absl::Status Commit(int64_t step);
  void Abandon(int64_t step);
  // Removes all but the newest `keep` complete checkpoints of this run. Call it
  // only after a Commit, so that the resumed checkpoint stays until there is a
  // newer one.
  void Rotate(int64_t keep);

 private:
  SaveFolder() = default;
  void CleanUp();
  absl::Status CheckContent(const StateFile* goes_on_from) const;

  std::string folder_;
  RunIdentity identity_;
  bool made_ = false;
  UniqueFd lock_;
};

}  // namespace sluice::train
