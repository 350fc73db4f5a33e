// trainer_state.json: the run that wrote a checkpoint.
//
// Format 2 and later have the run's id, its data's fingerprint and a cursor in
// tokens. Format 1 has none of these: its cursor counts sequences of its own
// length.
// Thread safety: pure functions on files.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
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

// Returns the id of a new run. A run that resumes keeps the checkpoint's id.
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
// Returns the text with this name, or "" if there is none.
std::string TextField(const nlohmann::ordered_json& json, const char* name);

absl::Status WriteState(const std::string& folder, const RunOptions& options,
                        const StateFile& state);
// InvalidArgument: the state is incomplete. OutOfRange: a newer program wrote
// it.
absl::StatusOr<StateFile> ReadState(const std::string& folder);
// Checks that the options are those of the run that wrote the state;
// InvalidArgument names the flag that differs.
absl::Status CheckFlags(const std::string& folder, const RunOptions& options);

// Returns the key of a saved plan: runs with equal keys can use the same plan.
// `attention` is a GPU's kernel (RankMemory::KernelName), empty on a simulated
// one; `rounds_output` is RoundsOutput of step/stepper.h; `states` is the place
// of the optimizer's states.
std::string PlanKey(const RunOptions& options, int ranks, Bytes hbm,
                    const std::string& attention, bool rounds_output,
                    stream::StatePlace states);
// Explains in words why a plan with the key `saved` does not suit `wanted`.
std::string WhyAnotherKey(const std::string& saved, const std::string& wanted);
// Returns the settings in a key of PlanKey; nullopt if an older program made
// the key, or if it is no key.
std::optional<stream::Settings> SettingsOf(const std::string& key);

}  // namespace sluice::train
