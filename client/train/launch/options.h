// Parses and checks the command line of sluice-train.
// Thread safety: pure functions and plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/stream/attention_kernel.h"
#include "planner/stream/options.h"
#include "planner/stream/states.h"
#include "proto/base/units.h"

namespace sluice::train {

enum class Command { kTrain, kCheck, kProfile };
enum class Method { kKeepAll, kRecompute, kAlst, kSluice };
using stream::AttentionKernel;
using stream::Dtype;

const char* Name(Method method);
const char* Name(Dtype dtype);

struct RunOptions {
  Command command = Command::kTrain;
  std::string socket;  // empty: client::DefaultSocket()
  std::string job = "train";
  double wait = 0;  // seconds that a lease may wait for memory
  bool private_daemon = false;
  std::string driver;  // required driver of the daemon's GPUs; empty: any
  Method method = Method::kSluice;
  stream::ModelShape model;
  int64_t seq_len = 1024;  // global tokens
  // Settings of the streamed method. 0 or unset: chosen (ChooseSettings).
  int64_t chunk = 0;  // global tokens
  int prefetch = 0;
  std::optional<stream::BackwardOrder> order;
  bool resident = false;          // chosen: everything stays in HBM if it fits
  std::optional<double> rerun;    // fraction of the chunks; unset: chosen
  int64_t rerun_layers = 0;       // 0: chosen, or 1 with --chunk
  int64_t rerun_chunks = 0;       // chosen, or from `rerun` with --chunk
  double kept = 0;                // chosen (stream::Settings)
  double alpha = -1;              // negative: the planner chooses
  stream::FractionMap fractions;  // of the classes in --fractions
  bool keep = true;               // false: the planner keeps no rows on the GPU
  // Unset: in HBM if they fit there, else in host memory.
  std::optional<stream::StatePlace> optimizer_states;
  Dtype dtype = Dtype::kFp32;
  AttentionKernel attention = AttentionKernel::kAuto;
  bool round_output = false;  // on sim too; see stream::StreamOptions
  int ranks = 1;
  int threads = 1;  // of ATen, per rank
  int64_t steps = 10;
  double lr = 1e-3;
  int64_t warmup = 10;
  double clip = 1.0;  // of the global gradient norm; 0: none
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  int64_t batch = 1;
  int64_t accumulate = 1;
  int64_t seed = 1;
  std::string data;         // empty: the torch package's Python sources
  std::string data_suffix;  // of a folder's files; empty: every text file
  int token_bytes = 0;      // of a .bin without a header; 0: unknown
  Bytes hbm;                // per rank; 0: as RankMemory::Options::hbm
  Bytes host;  // all local ranks together; 0: what the budgets allow
  std::string save;
  int64_t save_every = 0;
  int64_t keep_checkpoints = 0;  // how many of the newest to keep; 0: all
  std::string resume;
  bool allow_other_data = false;  // resume with another text
  std::string log_jsonl;
  std::string trace;
  // Seconds without progress until a rank is reported, and until the run ends.
  // 0: never; negative: from the step's expected time (watch/watchdog.h).
  double late_after = -1;
  double end_after = -1;
  std::vector<int64_t> gpus;  // dealt to ranks in turn; empty: see ChooseGpus
  bool probe = false;
  bool json = false;
  std::string shared_flags;  // as given: those that all ranks need alike

  int64_t sequences() const { return batch * accumulate; }  // of a step
  int64_t step_tokens() const { return sequences() * seq_len; }
};

struct ParsedCommand {
  int exit = -1;  // >= 0: end with this status (--help was printed)
  RunOptions options;
};

// InvalidArgument: one line that names the flag, its value and the limit.
absl::StatusOr<ParsedCommand> ParseCommandLine(
    const std::vector<std::string>& arguments);

// Checks everything that needs neither the daemon nor the data.
absl::Status Validate(const RunOptions& options);
// Checks that the method can run the model on that many ranks.
absl::Status ValidateRanks(const RunOptions& options, int64_t ranks);

}  // namespace sluice::train
