// trainer_state.json: the run that wrote a checkpoint.
//
// Format 2 and later have the run's id, its data's fingerprint and a cursor in
// tokens. Format 1 has none of these: its cursor counts sequences of its own
// length.
// Thread safety: pure functions on files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/train/launch/options.h"
#include "planner/stream/settings.h"

namespace sluice::train {

// The run of a checkpoint, and the data that the run reads.
struct RunIdentity {
  std::string run;   // 16 hex digits; empty in format 1
  std::string data;  // Corpus::Fingerprint; empty: unknown
  int64_t data_tokens = 0;
};

// The id of a new run. A run that resumes keeps the checkpoint's id.
std::string NewRunId();

struct StateFile {
  int format = 3;
  int64_t step = 0;        // completed
  int64_t next_token = 0;  // of the corpus, where the next sequence starts
  int ranks = 1;
  RunIdentity identity;
  // Format 1 has these instead of next_token.
  int64_t next_sequence = 0, seq_len = 1;

  // Returns where the next sequence starts in a corpus of `tokens` tokens.
  int64_t NextToken(int64_t tokens) const;
};

std::string StatePath(const std::string& folder);

absl::Status WriteState(const std::string& folder, const RunOptions& options,
                        const StateFile& state);
// InvalidArgument: incomplete. OutOfRange: a newer program's format.
absl::StatusOr<StateFile> ReadState(const std::string& folder);
// InvalidArgument names the flag if the options differ from those of the run
// that wrote it.
absl::Status CheckFlags(const std::string& folder, const RunOptions& options);

// The key of a saved plan: two runs with the same text can use the same plan.
// `attention` is a GPU's kernel (RankMemory::KernelName), empty on a simulated
// one; `rounds_output` is RoundsOutput of step/stepper.h; `states` is the place
// of the optimizer's states.
std::string PlanKey(const RunOptions& options, int ranks, Bytes hbm,
                    const std::string& attention, bool rounds_output,
                    stream::StatePlace states);
// Explains in words why a plan with the key `saved` does not suit `wanted`.
std::string WhyAnotherKey(const std::string& saved, const std::string& wanted);
// The settings in such a key; nullopt if the key is older, or no key.
std::optional<stream::Settings> SettingsOf(const std::string& key);

}  // namespace sluice::train
