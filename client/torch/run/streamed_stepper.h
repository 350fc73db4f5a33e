// A rank's streamed run: it calibrates, asks the daemon for a plan, leases the
// host region and steps. It can take a new plan while the run goes on. The
// trainer owns weights, gradients and optimizer. Messages name no flags. Errors
// are marked (proto/base/shortage.h, proto/base/peer_fault.h).
//
// Thread safety: one thread; with several ranks all make the same calls
// together.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "client/torch/run/plan_change.h"
#include "client/torch/run/run_context.h"
#include "client/torch/stream/streamed_model.h"
#include "planner/stream/fractions.h"

namespace sluice::runtime {

class StreamedStepper {
 public:
  struct Options {
    // `fractions` fixes the fractions of single classes; if `alpha` is
    // negative, the planner chooses all others.
    stream::StreamOptions stream;
    // False: the planner keeps only rows in HBM that `stream.fractions` keeps.
    bool may_keep = true;
    // Set if an estimate (choose_settings.h) predicts that everything fits in
    // HBM. Everything stays there if the first plan confirms the estimate.
    bool keep_everything = false;
    bool record_copies = false;  // keep a timeline (TakeCopies)
  };
  // Makes a stepper and its plan. `saved` (may be null) replaces calibration
  // and planning if it still fits. What `context` points to outlives the
  // stepper. Errors: ResourceExhausted with what ran out; Aborted or
  // Unavailable, marked, if another rank caused it.
  static absl::StatusOr<std::unique_ptr<StreamedStepper>> Make(
      const RunContext& context, const Options& options,
      const SavedPlan* saved);
  ~StreamedStepper();
  StreamedStepper(const StreamedStepper&) = delete;

  // Runs one sequence and adds to the gradients; see StreamedStep.
  absl::StatusOr<StepResult> Run(const at::Tensor& tokens,
                                 const at::Tensor& labels,
                                 int64_t global_count) {
    return StreamedStep(*stream_, context_.weights->weights(),
                        context_.weights->gradients(), tokens, labels,
                        global_count);
  }
  const stream::ChunkLayout& layout() const { return options_.stream.layout; }
  // Returns all host memory that the rank holds, as plans count it.
  Bytes host_bytes() const {
    return context_.memory->fixed_host() +
           (host_ != nullptr ? host_->size() : Bytes(0));
  }
  client::CopyStats copies() const { return copies_->stats(); }
  std::vector<client::CopyRecord> TakeCopies() {
    return copies_->TakeTimeline();
  }
  double alpha() const;
  // Returns the fractions now in use, of all classes including scratch.
  stream::FractionMap fractions() const { return PlannedFractions(); }
  const SavedPlan& saved_plan() const { return saved_; }
  PlanSummary plan() const;
  // Returns one line on how the plan was obtained; empty: as usual.
  std::string note() const;
  // Returns the id of the plan that the daemon wants this rank to take next
  // (plan_change.h), or 0 if none, and remembers the plan for Refresh.
  uint64_t OfferedPlan();
  // Changes the plan between two steps. All ranks of the run call it together.
  // Ranks with `mine` take the plan that OfferedPlan returned last; the others
  // join in, because a calibration needs all ranks. If the plan does not fit,
  // the run goes on with the former plan, or with another one that fits now. An
  // error ends the run: a lost peer, no memory at all, or, with several ranks,
  // a rank that ran out of HBM during the calibration.
  absl::StatusOr<PlanChangeRecord> Refresh(bool mine);

 private:
  // One calibration and the plan that follows it.
  struct Round {
    stream::FractionMap fractions;  // of every class
    stream::FractionMap given;      // those that the planner must not change
    bool settled = false;           // the former plan gives all fractions
  };

  StreamedStepper(const RunContext& context, const Options& options);
  absl::Status Prepare(const SavedPlan* saved);
  StreamContext::Options StreamOptions(
      const stream::FractionMap& fractions) const;
  absl::StatusOr<std::unique_ptr<client::Region>> LeaseForCalibration(
      const stream::StreamOptions& options);
  absl::StatusOr<std::vector<plan::SegmentKind>> Calibrate(
      const stream::FractionMap& fractions);
  absl::Status MakePlan();
  absl::Status PlanWith(const Round& round);
  absl::StatusOr<bool> PlanOnAll(const Round& round);
  absl::Status Settle(const stream::FractionMap& chosen);
  absl::Status GpuTooSmall() const;
  bool MayKeepEverything() const;
  stream::FractionMap Given(bool everything) const;
  absl::StatusOr<Round> FirstRound(bool everything) const;
  stream::FractionMap PlannedFractions() const;
  absl::StatusOr<stream::FractionMap> AgreedFractions() const;
  absl::Status CheckShared() const;
  absl::Status AdoptPlan();
  absl::Status Start();
  absl::StatusOr<bool> Replay(const SavedPlan& saved);

  // --- steps of Refresh: those with a bool return false on all ranks if the
  // step fails, with the reason in `why_`

  // Runs steps up to the first one that fails on any rank.
  absl::StatusOr<bool> AllFine(
      std::initializer_list<std::function<absl::Status()>> steps);
  // Unsets the plan, so that every segment is recorded.
  absl::Status ClearPlan() {
    return context_.memory->allocator().SetPlan({}, {}, Bytes(0));
  }
  absl::Status CheckRoom(const stream::FractionMap& chosen,
                         const SavedPlan& before) const;
  absl::StatusOr<bool> TakeFractions(const stream::FractionMap& chosen,
                                     const SavedPlan& before);
  absl::StatusOr<bool> Restart(bool release);
  absl::StatusOr<bool> GoBack(const SavedPlan& before);
  absl::StatusOr<bool> PlanAnew();
  plan::RankProfile Profile(const std::vector<plan::SegmentKind>& recorded,
                            const Round& round) const;
  void Ask(const Round& round, plan::RankProfile* profile) const;

  const RunContext context_;
  const Options options_;
  std::unique_ptr<client::CopyEngine> copies_;
  std::unique_ptr<client::Region> host_;
  // The calibration's host region, held for Start if host memory is tight.
  std::unique_ptr<client::Region> spare_;
  std::unique_ptr<StreamContext> stream_;
  SavedPlan saved_;
  std::shared_ptr<const plan::NodePlan> offered_;
  bool out_of_step_ = false;
  absl::Status full_;  // why this GPU was too small for the last plan
  std::string why_;
  std::string note_;
};

}  // namespace sluice::runtime
