// trainer_state.json: what a checkpoint says of the run that wrote it.
//
// Format 2 has the run's id, its data's fingerprint and a cursor in tokens.
// Format 1, of before, has none of these: its cursor counts sequences of its
// own length.
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

// Which run a checkpoint belongs to, and what that run reads.
struct RunIdentity {
  std::string run;   // 16 hex digits; empty: of before runs had ids
  std::string data;  // Corpus::Fingerprint; empty: not known
  int64_t data_tokens = 0;
};

// A run that goes on from a checkpoint keeps its id; a new one gets its own.
std::string NewRunId();

struct StateFile {
  int format = 3;
  int64_t step = 0;        // done
  int64_t next_token = 0;  // of the corpus: where the next sequence starts
  int ranks = 1;
  RunIdentity identity;
  // Format 1 has these in place of next_token.
  int64_t next_sequence = 0, seq_len = 1;

  // Where the next sequence starts in a corpus of so many tokens.
  int64_t NextToken(int64_t tokens) const;
};

std::string StatePath(const std::string& folder);

absl::Status WriteState(const std::string& folder, const RunOptions& options,
                        const StateFile& state);
// InvalidArgument: not whole. OutOfRange: of a newer program's format.
absl::StatusOr<StateFile> ReadState(const std::string& folder);
// InvalidArgument, naming the flag: the options are not those of the run that
// wrote it.
absl::Status CheckFlags(const std::string& folder, const RunOptions& options);

// What a saved plan was made for; another text means another plan. `attention`:
// a GPU's kernel (RankMemory::KernelName), empty on a simulated one;
// `rounds_output`: RoundsOutput of step/stepper.h; `states`: where the
// optimizer's lie.
std::string PlanKey(const RunOptions& options, int ranks, Bytes hbm,
                    const std::string& attention, bool rounds_output,
                    stream::StatePlace states);
// Why a plan with the key `saved` is none for `wanted`, in words.
std::string WhyAnotherKey(const std::string& saved, const std::string& wanted);
// What such a key was written with; none: a key of before, or no key.
std::optional<stream::Settings> SettingsOf(const std::string& key);

}  // namespace sluice::train
