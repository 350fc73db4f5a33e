// Checkpoints: Hugging Face's files, and the files that a run needs to resume.
//
//   checkpoint-120/
//     config.json, model.safetensors     what other tools read
//     trainer_state.json                 run, step, data cursor, model, ranks
//     optimizer-0-of-2.safetensors, …    a rank's m, v, master, RNG
//     plan-0-of-2.json, …                a rank's profile and the plan
//
// A run that resumes on the same number of ranks and threads goes on bit for
// bit (on the CPU). On another number of ranks its losses agree within
// rounding, because buckets change their owners and a new plan is made.
// Errors: InvalidArgument, one line: which file, and what is broken in it.
// Thread safety: one thread per rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/train/checkpoint/checkpoint_files.h"
#include "client/train/optimizer/adamw.h"
#include "client/train/step/stepper.h"

namespace sluice::train {

// One tensor of model.safetensors, with Hugging Face's name and layout, and the
// flat entries that it joins along their outputs. Llama's linear weights are
// [out, in]. GPT-2's are transposed ([in, out], Conv1D), with q, k and v joined
// (c_attn).
struct HfTensor {
  std::string name;
  std::vector<FlatEntry> parts;
  bool transposed = false;
  std::vector<int64_t> shape() const;
};

std::vector<HfTensor> HfTensors(const stream::ModelShape& config);

// Writes this rank's files into the existing `folder`. `plan` may be null.
absl::Status WriteCheckpoint(const std::string& folder,
                             const StepperContext& context,
                             const StateFile& state, AdamW& optimizer,
                             const runtime::SavedPlan* plan);

struct Checkpoint : FoundCheckpoint {
  stream::ModelShape model;
  int rank = 0;
  int world_size = 1;

  // InvalidArgument: the checkpoint is of another text, and --allow-other-data
  // is not set.
  absl::Status CheckData(const RunOptions& options,
                         const RunIdentity& now) const;
  std::string Describe() const;

  absl::Status LoadWeights(FlatModel& weights, runtime::HostStage& stage) const;
  // Overwrites all states of this rank. Call it before the first update.
  absl::Status LoadOptimizer(AdamW& optimizer, runtime::HostStage& stage) const;
  // NotFound, with the reason: no plan was saved with this run's PlanKey.
  absl::StatusOr<runtime::SavedPlan> LoadPlan(
      const StepperContext& context) const;
  // Returns the saved plan's settings, if they suit the flags of this run,
  // which else are the saved plan's. The GPU memory may differ.
  std::optional<stream::Settings> LoadSettings(
      const StepperContext& context) const;
};

// Refuses a checkpoint of another model or dtype, and names the flag.
absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path,
                                          const RunOptions& options,
                                          const RankEnvironment& environment);

}  // namespace sluice::train
