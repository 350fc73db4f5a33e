// Runs one micro-batch forward and backward by the chosen method, and chooses
// the settings of a step that the command line leaves open.
// Thread safety: one thread; all ranks make the same calls together.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/torch/baseline/baseline.h"
#include "client/torch/ranks/collectives.h"
#include "client/torch/run/agreement.h"
#include "client/torch/run/host_stage.h"
#include "client/torch/run/streamed_stepper.h"
#include "client/train/launch/options.h"
#include "client/train/launch/rank_environment.h"
#include "client/train/optimizer/adamw.h"
#include "client/train/watch/rank_watch.h"
#include "planner/stream/profile.h"
#include "planner/stream/settings.h"
#include "planner/stream/states.h"

namespace sluice::train {

// The objects that a stepper works on. They outlive it.
struct StepperContext {
  const RunOptions* options = nullptr;
  const RankEnvironment* environment = nullptr;
  runtime::RankMemory* memory = nullptr;
  runtime::Collectives* collectives = nullptr;  // null: one rank
  FlatModel* weights = nullptr;
  FlatModel* gradients = nullptr;
  RankWatch* watch = nullptr;
  runtime::HostStage* stage = nullptr;  // to and from the device's tensors
  stream::StatePlace states = stream::StatePlace::kHbm;  // of the optimizer
  runtime::PendingWeights* pending = nullptr;  // the optimizer, once it exists

  // Returns whether attention's output is stored in the model's dtype: on GPUs,
  // or with --round-output; never for fp32.
  bool RoundsOutput() const;
  bool WantsTrace() const;
  std::string KernelName() const;  // of attention
};

class Stepper {
 public:
  // Makes the stepper of --method. A collective, except for keep-all and
  // recompute. `saved` (may be null) is a plan that lets a streamed run skip
  // calibration and planning if it still fits.
  static absl::StatusOr<std::unique_ptr<Stepper>> Make(
      const StepperContext& context, const runtime::SavedPlan* saved);
  ~Stepper();

  // Runs one micro-batch and adds to the gradients; see runtime::StreamedStep.
  absl::StatusOr<runtime::StepResult> Run(const at::Tensor& tokens,
                                          const at::Tensor& labels,
                                          int64_t global_count);
  stream::ChunkLayout layout() const;
  // Returns the measured costs of a sequence's segments; ratios for baselines.
  SegmentCosts costs() const;
  // Returns all host memory that the rank holds, as plans count it.
  Bytes host_bytes() const;
  client::CopyStats copies() const;
  std::vector<client::CopyRecord> TakeCopies();

  // The run of method sluice; null for a baseline, which has no plan.
  runtime::StreamedStepper* streamed() const { return streamed_.get(); }
  const runtime::SavedPlan* saved_plan() const {
    return streamed_ != nullptr ? &streamed_->saved_plan() : nullptr;
  }
  const plan::RankPlan* own_plan() const {
    return streamed_ != nullptr ? saved_plan()->own() : nullptr;
  }
  // REQUIRES: streamed().
  stream::StepPrice price() const;

 private:
  explicit Stepper(const StepperContext& context);
  absl::Status MakeInputs();

  const StepperContext context_;
  const std::unique_ptr<runtime::WeightSource> weights_;
  std::unique_ptr<runtime::StreamedStepper> streamed_;
  runtime::BaselineOptions baseline_;
  // The next three are set for alst only.
  std::unique_ptr<client::CopyEngine> copies_;
  std::unique_ptr<client::Region> host_;
  std::unique_ptr<runtime::HostInputs> inputs_;
};

// Chooses the settings that the command line leaves open, by measuring. `why`
// gets one line: what was chosen, and the alternatives.
absl::StatusOr<stream::Settings> ChooseSettings(const StepperContext& context,
                                                std::string& why);
// Returns the options with these settings for what the command line leaves
// open.
RunOptions WithSettings(RunOptions options, const stream::Settings& settings);

// Returns the least HBM that a step needs besides the states, if it keeps only
// the rows of --fractions, with the given or the first tried chunk size.
Bytes LeastStepBytes(const StepperContext& context);

// Sets the order of backward's blocks if --chunk is given and the order is not.
// Measures nothing: chooses the order that moves fewer bytes, or the only one
// that has the classes of --fractions. All ranks choose the same.
// InvalidArgument: no order has these classes.
absl::Status ChooseOrder(const StepperContext& context, RunOptions& options,
                         std::string& why);

}  // namespace sluice::train
