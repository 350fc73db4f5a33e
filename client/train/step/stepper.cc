#include "client/train/step/stepper.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <utility>

#include "client/torch/baseline/baseline.h"
#include "client/torch/placement.h"
#include "client/train/launch/outcome.h"
#include "proto/base/shortage.h"
#include "proto/base/sizes.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

runtime::BaselineMethod BaselineMethodOf(Method method) {
  switch (method) {
    case Method::kKeepAll:
      return runtime::BaselineMethod::kKeepAll;
    case Method::kAlst:
      return runtime::BaselineMethod::kAlst;
    case Method::kRecompute:
    case Method::kSluice:
      break;
  }
  return runtime::BaselineMethod::kRecompute;
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

  // alst only: a collective. Host memory for this rank's layer inputs, and
  // copies through the engine that the sluice method's go through.
  absl::Status PrepareInputs() {
    return Agree(context_.collectives, MakeInputs());
  }

  absl::StatusOr<runtime::StepResult> Run(const at::Tensor& tokens,
                                          const at::Tensor& labels,
                                          int64_t global_count) override {
    return runtime::BaselineStep(options_, context_.weights->tensors(),
                                 context_.gradients->tensors(), tokens, labels,
                                 global_count);
  }

  // The whole sequence is one chunk.
  stream::ChunkLayout layout() const override {
    return stream::ChunkLayout(options_.seq_len, options_.seq_len,
                               context_.environment->world_size);
  }

  // Backward is two forwards, and one more where a layer runs again.
  SegmentCosts costs() const override {
    const int64_t layers = options_.model.layers;
    const bool again = options_.method != runtime::BaselineMethod::kKeepAll;
    return {{"layer.forward", {1, layers}},
            {"layer.backward", {again ? 3.0 : 2.0, layers}}};
  }

  Bytes host_bytes() const override {
    return host_ != nullptr ? host_->size() : Bytes(0);
  }
  client::CopyStats copies() const override {
    return copies_ != nullptr ? copies_->stats() : client::CopyStats{};
  }
  std::vector<client::CopyRecord> TakeCopies() override {
    return copies_ != nullptr ? copies_->TakeTimeline()
                              : std::vector<client::CopyRecord>{};
  }

 private:
  absl::Status MakeInputs() {
    SLUICE_ASSIGN_OR_RETURN(copies_,
                            StartCopies(context_, WantsTrace(context_)));
    runtime::HostInputs::Options inputs{.device = options_.device};
    inputs.layers = options_.model.layers;
    inputs.rows = layout().total_local_rows(context_.environment->rank);
    inputs.hidden = options_.model.hidden;
    inputs.dtype = context_.weights->flat().scalar_type();
    inputs.copies = copies_.get();
    inputs.host_size = runtime::HostInputs::HostBytes(inputs);
    if (inputs.host_size > Bytes(0)) {  // a rank may have no row
      SLUICE_ASSIGN_OR_RETURN(host_, LeaseHost(context_, inputs.host_size));
      inputs.host = host_->data();
    }
    SLUICE_ASSIGN_OR_RETURN(inputs_, runtime::HostInputs::Create(inputs));
    options_.inputs = inputs_.get();
    return absl::OkStatus();
  }

  StepperContext context_;
  runtime::BaselineOptions options_;
  std::unique_ptr<client::CopyEngine> copies_;  // alst's, as those below
  std::unique_ptr<client::Region> host_;
  std::unique_ptr<runtime::HostInputs> inputs_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<client::CopyEngine>> StartCopies(
    const StepperContext& context, bool timeline) {
  client::CopyEngine::Options copies;
  copies.driver = &context.memory->session().driver();
  copies.device = context.memory->session().limits().device;
  copies.gate = &context.memory->session().grants();
  copies.record_timeline = timeline;
  return client::CopyEngine::Start(copies);
}

bool WantsTrace(const StepperContext& context) {
  return !context.options->trace.empty() && context.environment->rank == 0;
}

Bytes HostRoom(const StepperContext& context) {
  const Bytes given = context.options->host;
  return (given.count() > 0 ? given
                            : context.memory->session().limits().host_free) /
         context.environment->local_world_size;
}

absl::StatusOr<std::unique_ptr<client::Region>> LeaseHost(
    const StepperContext& context, Bytes size) {
  const Bytes limit = context.options->host;
  const Bytes share = limit / context.environment->local_world_size;
  if (limit.count() > 0 && size > share) {
    return DoesNotFit(
        kHostMemory,
        fmt::format("{} of host memory needed, this rank's share of --host {} "
                    "is {}: give --host {}, or shorten --seq-len",
                    FormatBytes(size), FormatBytes(limit), FormatBytes(share),
                    ExactBytes(RoundUp(size, MiB(1)) *
                               context.environment->local_world_size)));
  }
  auto region = context.memory->session().LeaseHost(size);
  // The daemon's line says what to do.
  if (IsOutOfMemory(region.status())) {
    return DoesNotFit(LimitedBy(region.status()), region.status());
  }
  return region;
}

absl::StatusOr<std::unique_ptr<Stepper>> MakeStepper(
    const StepperContext& context, const SavedPlan* saved) {
  if (context.options->method == Method::kSluice) {
    return MakeStreamedStepper(context, saved);
  }
  auto stepper = std::make_unique<BaselineStepper>(context);
  if (context.options->method == Method::kAlst) {
    SLUICE_RETURN_IF_ERROR(stepper->PrepareInputs());
  }
  return stepper;
}

absl::StatusOr<bool> AllAgree(runtime::Collectives* collectives, bool fine) {
  if (collectives == nullptr) return fine;
  // Not in HBM: that may be what just ran out.
  const runtime::HostScope host("agreement of the ranks");
  at::Tensor failed =
      at::full({1}, fine ? 0.0 : 1.0, runtime::OnHost(at::kDouble));
  SLUICE_RETURN_IF_ERROR(ClassifyStepError(collectives->SumAll(failed)));
  return failed.item<double>() == 0;
}

absl::Status Agree(runtime::Collectives* collectives,
                   const absl::Status& status) {
  const auto all = AllAgree(collectives, status.ok());
  if (!status.ok()) return status;
  SLUICE_RETURN_IF_ERROR(all.status());
  if (*all) return absl::OkStatus();
  return CausedByPeer(absl::AbortedError("another rank failed"));
}

absl::Status ClassifyStepError(const absl::Status& status) {
  if (ShortageOf(status) != Shortage::kNone) return WithAdvice(status);
  if (status.code() == absl::StatusCode::kUnavailable) {
    return CausedByPeer(status);
  }
  return status;
}

}  // namespace sluice::train
