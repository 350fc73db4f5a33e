// One micro-batch forward and backward, by each of the methods.
//
// Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/torch/math/model_tensors.h"
#include "client/torch/ranks/collectives.h"
#include "client/torch/run/plan_change.h"
#include "client/torch/run/rank_memory.h"
#include "client/train/launch/options.h"
#include "client/train/optimizer/flat_model.h"
#include "client/train/run_report.h"
#include "client/train/watch/rank_watch.h"
#include "planner/stream/fractions.h"
#include "planner/stream/layouts.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

namespace sluice::train {

// What a rank's methods work on. All outlive the stepper.
struct StepperContext {
  const RunOptions* options = nullptr;
  const RankEnvironment* environment = nullptr;
  RankMemory* memory = nullptr;
  runtime::Collectives* collectives = nullptr;  // null: one rank
  FlatModel* weights = nullptr;
  FlatModel* gradients = nullptr;
  RankWatch* watch = nullptr;
};

// A plan and the recording it answers: what a resumed run replays.
struct SavedPlan {
  plan::RankProfile profile;
  plan::NodePlan plan;
};

class Stepper {
 public:
  virtual ~Stepper() = default;
  // Adds to the gradients; see runtime::StreamedStep.
  virtual absl::StatusOr<runtime::StepResult> Run(const at::Tensor& tokens,
                                                  const at::Tensor& labels,
                                                  int64_t global_count) = 0;
  virtual stream::ChunkLayout layout() const = 0;
  // What a sequence's segments take: measured, or (baselines) their ratios.
  virtual SegmentCosts costs() const = 0;
  // Of sluice and alst; the others copy nothing.
  virtual Bytes host_bytes() const { return Bytes(0); }
  virtual client::CopyStats copies() const { return {}; }
  // Of sluice; the others have no plan.
  virtual double alpha() const { return 0; }
  // Of every class, scratch too, as it runs.
  virtual stream::FractionMap fractions() const { return {}; }
  virtual const plan::RankPlan* own_plan() const { return nullptr; }
  virtual PlanSummary plan() const { return {}; }
  virtual const SavedPlan* saved_plan() const { return nullptr; }
  // One line on how it came by its plan; empty: as usual.
  virtual std::string note() const { return ""; }
  virtual std::vector<client::CopyRecord> TakeCopies() { return {}; }
  // The plan that the daemon wants this rank to take next (plan_change.h); 0:
  // none. Stays what it was until Refresh.
  virtual uint64_t OfferedPlan() { return 0; }
  // On all ranks of the run, between steps: those with `mine` take what they
  // offered, the others go along, as a calibration needs all of them. What
  // cannot be had is not taken: the run goes on with what it had, or with
  // what fits now. An error ends the run: a lost peer, no memory at all, or,
  // with several ranks, one that ran out of HBM inside the calibration.
  virtual absl::StatusOr<PlanChangeRecord> Refresh(bool) {
    return PlanChangeRecord{};
  }
};

// By --method; a collective but for keep-all and recompute. `saved`: as
// MakeStreamedStepper's. DoesNotFit with what ran out.
absl::StatusOr<std::unique_ptr<Stepper>> MakeStepper(
    const StepperContext& context, const SavedPlan* saved);

// Calibrates, has the daemon plan, leases the host region. `saved` (may be
// null) skips calibration and planning where it still fits. DoesNotFit with
// what ran out.
absl::StatusOr<std::unique_ptr<Stepper>> MakeStreamedStepper(
    const StepperContext& context, const SavedPlan* saved);

// What several steppers need (internal to them).
// `timeline`: keeps a record of every copy.
absl::StatusOr<std::unique_ptr<client::CopyEngine>> StartCopies(
    const StepperContext& context, bool timeline);
// The timeline that --trace writes is rank 0's.
bool WantsTrace(const StepperContext& context);
// This rank's share of the host memory that there is.
Bytes HostRoom(const StepperContext& context);
// --host binds all local ranks together, so each its share. DoesNotFit: more
// than that, or than the daemon leases.
absl::StatusOr<std::unique_ptr<client::Region>> LeaseHost(
    const StepperContext& context, Bytes size);

// All ranks learn whether every one of them is fine: the first collective
// after work that only some may have failed. A failed rank gets its own
// status back, the others CausedByPeer. Not after a failure inside
// collectives: then the ranks are out of step, and leaving is the message.
absl::Status Agree(runtime::Collectives* collectives,
                   const absl::Status& status);

// As Agree where every rank goes on after a refusal: whether all ranks are
// fine. An error is a lost peer.
absl::StatusOr<bool> AllAgree(runtime::Collectives* collectives, bool fine);

// What ran out is said with what to do; a lost collective is a peer's.
absl::Status ClassifyStepError(const absl::Status& status);

}  // namespace sluice::train
