// Runs one micro-batch forward and backward by the chosen method.
// Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/torch/math/model_tensors.h"
#include "client/torch/ranks/collectives.h"
#include "client/torch/run/agreement.h"
#include "client/torch/run/host_stage.h"
#include "client/torch/run/plan_change.h"
#include "client/torch/run/run_context.h"
#include "client/train/launch/options.h"
#include "client/train/launch/rank_environment.h"
#include "client/train/optimizer/flat_model.h"
#include "client/train/watch/rank_watch.h"
#include "planner/stream/fractions.h"
#include "planner/stream/layouts.h"
#include "planner/stream/profile.h"
#include "planner/stream/states.h"
#include "proto/plan/plan.h"

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
};

// The context's weights and gradients, as a streamed run reads them.
class FlatWeights final : public runtime::WeightSource {
 public:
  explicit FlatWeights(const StepperContext& context)
      : weights_(*context.weights),
        gradients_(*context.gradients),
        pending_(context.pending) {}
  const runtime::ModelTensors& weights() override { return weights_.tensors(); }
  runtime::ModelTensors& gradients() override { return gradients_.tensors(); }
  void ZeroGradients() override { gradients_.flat().zero_(); }
  absl::Status AwaitPart(int64_t part) override {
    return pending_ != nullptr ? pending_->AwaitPart(part) : absl::OkStatus();
  }
  absl::Status Advance() override {
    return pending_ != nullptr ? pending_->Advance() : absl::OkStatus();
  }

 private:
  FlatModel& weights_;
  FlatModel& gradients_;
  runtime::PendingWeights* const pending_;
};
runtime::RunContext RunContextOf(const StepperContext& context,
                                 FlatWeights* weights);

class Stepper {
 public:
  virtual ~Stepper() = default;
  // Runs one micro-batch and adds to the gradients; see runtime::StreamedStep.
  virtual absl::StatusOr<runtime::StepResult> Run(const at::Tensor& tokens,
                                                  const at::Tensor& labels,
                                                  int64_t global_count) = 0;
  virtual stream::ChunkLayout layout() const = 0;
  // Returns measured costs of a sequence's segments; for baselines, ratios.
  virtual SegmentCosts costs() const = 0;
  // Returns all host memory that the rank holds, as plans count it.
  virtual Bytes host_bytes() const = 0;
  virtual client::CopyStats copies() const { return {}; }
  // Only sluice has a plan.
  virtual double alpha() const { return 0; }
  // Returns the fractions in use, of every class including scratch.
  virtual stream::FractionMap fractions() const { return {}; }
  virtual std::optional<stream::StepPrice> price() const { return {}; }
  virtual runtime::PlanSummary plan() const { return {}; }
  virtual const runtime::SavedPlan* saved_plan() const { return nullptr; }
  const plan::RankPlan* own_plan() const {
    return saved_plan() != nullptr ? saved_plan()->own() : nullptr;
  }
  // Returns one line on how the plan was obtained; empty: as usual.
  virtual std::string note() const { return ""; }
  virtual std::vector<client::CopyRecord> TakeCopies() { return {}; }
  // See runtime::StreamedStepper.
  virtual uint64_t OfferedPlan() { return 0; }
  virtual absl::StatusOr<runtime::PlanChangeRecord> Refresh(bool) {
    return runtime::PlanChangeRecord{};
  }
};

// Makes the stepper of --method. A collective, except for keep-all and
// recompute. `saved` (may be null) is a plan that lets a streamed run skip
// calibration and planning if it still fits.
absl::StatusOr<std::unique_ptr<Stepper>> MakeStepper(
    const StepperContext& context, const runtime::SavedPlan* saved);

// Returns whether attention's output is stored in the model's dtype: on GPUs,
// or with --round-output; never for fp32.
bool RoundsOutput(const StepperContext& context);

// Returns whether this rank records the timeline for --trace.
bool WantsTrace(const StepperContext& context);

}  // namespace sluice::train
