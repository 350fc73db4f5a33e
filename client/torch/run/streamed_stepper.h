// The sluice method's stepper: calibrate, plan, lease the host region, stream.
// Internal to client/train: streamed_stepper.cc plans, streamed_refresh.cc
// takes a new plan while the run goes on.
//
// Thread safety: one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/torch/stream/streamed_model.h"
#include "client/train/step/stepper.h"

namespace sluice::train {

using runtime::StreamContext;

class StreamedStepper final : public Stepper {
 public:
  explicit StreamedStepper(const StepperContext& context)
      : context_(context),
        layout_(context.options->seq_len, context.options->chunk,
                context.environment->world_size) {}
  ~StreamedStepper() override;

  absl::Status Prepare(const SavedPlan* saved);

  absl::StatusOr<runtime::StepResult> Run(const at::Tensor& tokens,
                                          const at::Tensor& labels,
                                          int64_t global_count) override {
    return runtime::StreamedStep(*stream_, context_.weights->tensors(),
                                 context_.gradients->tensors(), tokens, labels,
                                 global_count);
  }
  stream::ChunkLayout layout() const override { return layout_; }
  SegmentCosts costs() const override;
  Bytes host_bytes() const override {
    return host_ != nullptr ? host_->size() : Bytes(0);
  }
  client::CopyStats copies() const override { return copies_->stats(); }
  double alpha() const override;
  stream::FractionMap fractions() const override { return PlannedFractions(); }
  const plan::RankPlan* own_plan() const override { return OwnPlan(); }
  PlanSummary plan() const override;
  const SavedPlan* saved_plan() const override { return &saved_; }
  std::string note() const override;
  std::vector<client::CopyRecord> TakeCopies() override {
    return copies_->TakeTimeline();
  }
  uint64_t OfferedPlan() override;
  absl::StatusOr<PlanChangeRecord> Refresh(bool mine) override;

 private:
  // What a calibration runs with, and what of it the planner must keep to.
  struct Round {
    stream::FractionMap fractions;  // of every class
    stream::FractionMap given;
    bool settled = false;  // all are given, by the plan before
  };

  StreamContext::Options StreamOptions(
      const stream::ChunkLayout& layout,
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
  absl::StatusOr<double> LeastOfRanks(double own) const;
  stream::FractionMap PlannedFractions() const;
  absl::StatusOr<stream::FractionMap> AgreedFractions() const;
  absl::StatusOr<bool> AnyRank(bool own) const;
  absl::Status CheckShared() const;
  absl::Status AdoptPlan();
  absl::Status Start();
  absl::StatusOr<bool> Replay(const SavedPlan& saved);

  // Refresh's (streamed_refresh.cc). Of those that return a bool: false on
  // all ranks where it cannot be had, with a word in `why_`.
  absl::StatusOr<bool> AllFine(const absl::Status& own);
  absl::Status CheckRoom(const stream::FractionMap& chosen,
                         const SavedPlan& before) const;
  absl::StatusOr<bool> TakeFractions(const stream::FractionMap& chosen,
                                     const SavedPlan& before);
  absl::StatusOr<bool> Restart(bool release);
  absl::StatusOr<bool> GoBack(const SavedPlan& before);
  absl::StatusOr<bool> PlanAnew();
  const plan::RankPlan* OwnPlan() const;
  plan::RankProfile Profile(const std::vector<plan::SegmentKind>& recorded,
                            const Round& round) const;
  void Ask(const Round& round, plan::RankProfile* profile) const;

  StepperContext context_;
  stream::ChunkLayout layout_;
  std::unique_ptr<client::CopyEngine> copies_;
  std::unique_ptr<client::Region> host_;
  std::unique_ptr<client::Region> spare_;  // a calibration's, where it is tight
  std::unique_ptr<StreamContext> stream_;
  SavedPlan saved_;
  std::shared_ptr<const plan::NodePlan> offered_;
  // A rank failed inside collectives: the ranks are out of step.
  bool out_of_step_ = false;
  std::string why_;
  std::string note_;
};

}  // namespace sluice::train
