#include "client/train/step/stepper.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "client/torch/baseline/baseline.h"
#include "client/torch/run/streamed_stepper.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

runtime::BaselineMethod BaselineMethodOf(Method method) {
  using runtime::BaselineMethod;
  if (method == Method::kKeepAll) return BaselineMethod::kKeepAll;
  return method == Method::kAlst ? BaselineMethod::kAlst
                                 : BaselineMethod::kRecompute;
}

class BaselineStepper final : public Stepper {
 public:
  explicit BaselineStepper(const StepperContext& context)
      : context_(context),
        options_{.model = context.options->model,
                 .seq_len = context.options->seq_len,
                 .method = BaselineMethodOf(context.options->method),
                 .device = context.memory->device(),
                 .collectives = context.collectives,
                 .allocator = &context.memory->allocator()} {}
  ~BaselineStepper() override {
    inputs_.reset();
    if (copies_ != nullptr) copies_->Drain().IgnoreError();
  }

  // Leases host memory for alst's layer inputs.
  absl::Status MakeInputs() {
    SLUICE_ASSIGN_OR_RETURN(copies_,
                            context_.memory->StartCopies(WantsTrace(context_)));
    runtime::HostInputs::Options inputs{.device = options_.device};
    inputs.layers = options_.model.layers;
    inputs.rows = layout().total_local_rows(context_.environment->rank);
    inputs.hidden = options_.model.hidden;
    inputs.dtype = context_.weights->flat().scalar_type();
    inputs.copies = copies_.get();
    inputs.host_size = runtime::HostInputs::HostBytes(inputs);
    if (inputs.host_size > Bytes(0)) {  // a rank may have no row
      SLUICE_ASSIGN_OR_RETURN(host_,
                              context_.memory->LeaseHost(inputs.host_size));
      inputs.host = host_->data();
    }
    SLUICE_ASSIGN_OR_RETURN(inputs_, runtime::HostInputs::Create(inputs));
    options_.inputs = inputs_.get();
    return absl::OkStatus();
  }

  absl::StatusOr<runtime::StepResult> Run(const at::Tensor& tokens,
                                          const at::Tensor& labels,
                                          int64_t global_count) override {
    return runtime::BaselineStep(options_, context_.weights->tensors(),
                                 context_.gradients->tensors(), tokens, labels,
                                 global_count);
  }

  stream::ChunkLayout layout() const override {
    return stream::ChunkLayout(options_.seq_len, options_.seq_len,
                               context_.environment->world_size);
  }

  // Backward costs two forwards, and a third if each layer runs again.
  SegmentCosts costs() const override {
    const int64_t layers = options_.model.layers;
    const bool again = options_.method != runtime::BaselineMethod::kKeepAll;
    return {{"layer.forward", {1, layers}},
            {"layer.backward", {again ? 3.0 : 2.0, layers}}};
  }

  Bytes host_bytes() const override {
    return context_.memory->fixed_host() +
           (host_ != nullptr ? host_->size() : Bytes(0));
  }
  client::CopyStats copies() const override {
    return copies_ != nullptr ? copies_->stats() : client::CopyStats{};
  }
  std::vector<client::CopyRecord> TakeCopies() override {
    return copies_ != nullptr ? copies_->TakeTimeline()
                              : std::vector<client::CopyRecord>{};
  }

 private:
  StepperContext context_;
  runtime::BaselineOptions options_;
  std::unique_ptr<client::CopyEngine> copies_;  // these three are alst's
  std::unique_ptr<client::Region> host_;
  std::unique_ptr<runtime::HostInputs> inputs_;
};

// Returns the fractions that flags give or the settings choose.
stream::FractionMap Placed(const RunOptions& o) {
  stream::FractionMap given = stream::KeepLastChunks(o.fractions, o.kept);
  return o.rerun_chunks > 0 ? stream::DropFree(o.model, std::move(given))
                            : given;
}

runtime::StreamedStepper::Options StreamedOptions(
    const StepperContext& context) {
  const RunOptions& o = *context.options;
  return {
      .stream = {.model = o.model,
                 .layout = stream::ChunkLayout(o.seq_len, o.chunk,
                                               context.environment->world_size),
                 .rank = context.environment->rank,
                 .dtype = o.dtype,
                 .alpha = o.alpha,
                 .fractions = Placed(o),
                 .prefetch_depth = o.prefetch,
                 .order = o.order.value_or(stream::BackwardOrder::kKeysOuter),
                 .round_output = RoundsOutput(context),
                 .rerun_chunks = o.rerun_chunks,
                 .rerun_layers = std::max<int64_t>(o.rerun_layers, 1),
                 .probe = o.probe},
      .may_keep = o.keep,
      .keep_everything = o.resident,
      .record_copies = WantsTrace(context)};
}

class SluiceStepper final : public Stepper {
 public:
  explicit SluiceStepper(const StepperContext& context)
      : context_(context), weights_(context) {}

  absl::Status Prepare(const runtime::SavedPlan* saved) {
    SLUICE_ASSIGN_OR_RETURN(
        run_, runtime::StreamedStepper::Make(RunContextOf(context_, &weights_),
                                             StreamedOptions(context_), saved));
    return absl::OkStatus();
  }

  absl::StatusOr<runtime::StepResult> Run(const at::Tensor& tokens,
                                          const at::Tensor& labels,
                                          int64_t global_count) override {
    return run_->Run(tokens, labels, global_count);
  }
  stream::ChunkLayout layout() const override { return run_->layout(); }
  SegmentCosts costs() const override {
    SegmentCosts costs;
    for (const plan::SegmentKind& kind : run_->saved_plan().profile.segments) {
      costs[kind.name] = {kind.seconds, kind.executions};
    }
    return costs;
  }
  Bytes host_bytes() const override { return run_->host_bytes(); }
  client::CopyStats copies() const override { return run_->copies(); }
  double alpha() const override { return run_->alpha(); }
  stream::FractionMap fractions() const override { return run_->fractions(); }
  std::optional<stream::StepPrice> price() const override {
    stream::StreamOptions runs = StreamedOptions(context_).stream;
    runs.fractions = run_->fractions();
    return stream::PriceOf(runs, run_->saved_plan().profile);
  }
  runtime::PlanSummary plan() const override { return run_->plan(); }
  const runtime::SavedPlan* saved_plan() const override {
    return &run_->saved_plan();
  }
  std::string note() const override { return run_->note(); }
  std::vector<client::CopyRecord> TakeCopies() override {
    return run_->TakeCopies();
  }
  uint64_t OfferedPlan() override { return run_->OfferedPlan(); }
  absl::StatusOr<runtime::PlanChangeRecord> Refresh(bool mine) override {
    return run_->Refresh(mine);
  }

 private:
  const StepperContext context_;
  FlatWeights weights_;
  std::unique_ptr<runtime::StreamedStepper> run_;
};

}  // namespace

runtime::RunContext RunContextOf(const StepperContext& context,
                                 FlatWeights* weights) {
  return {.memory = context.memory,
          .collectives = context.collectives,
          .weights = weights,
          .watch = context.watch};
}

bool RoundsOutput(const StepperContext& context) {
  const RunOptions& o = *context.options;
  return o.dtype != Dtype::kFp32 &&
         (o.round_output || context.memory->rounds_output());
}

bool WantsTrace(const StepperContext& context) {
  return !context.options->trace.empty() && context.environment->rank == 0;
}

absl::StatusOr<std::unique_ptr<Stepper>> MakeStepper(
    const StepperContext& context, const runtime::SavedPlan* saved) {
  if (context.options->method == Method::kSluice) {
    auto stepper = std::make_unique<SluiceStepper>(context);
    SLUICE_RETURN_IF_ERROR(stepper->Prepare(saved));
    return stepper;
  }
  auto stepper = std::make_unique<BaselineStepper>(context);
  if (context.options->method == Method::kAlst) {
    SLUICE_RETURN_IF_ERROR(
        runtime::Agree(context.collectives, stepper->MakeInputs()));
  }
  return stepper;
}

}  // namespace sluice::train
