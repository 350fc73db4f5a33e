#include "client/train/stepper.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include "client/torch/baseline/baseline.h"
#include "client/train/launch/outcome.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

class BaselineStepper final : public Stepper {
 public:
  explicit BaselineStepper(const StepperContext& context) : context_(context) {
    const RunOptions& o = *context.options;
    options_.model = o.model;
    options_.seq_len = o.seq_len;
    options_.method = o.method == Method::kKeepAll
                          ? runtime::BaselineMethod::kKeepAll
                          : runtime::BaselineMethod::kRecompute;
    options_.collectives = context.collectives;
    options_.allocator = &context.memory->allocator();
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
    const bool again = options_.method == runtime::BaselineMethod::kRecompute;
    return {{"layer.forward", {1, layers}},
            {"layer.backward", {again ? 3.0 : 2.0, layers}}};
  }

 private:
  StepperContext context_;
  runtime::BaselineOptions options_;
};

}  // namespace

std::unique_ptr<Stepper> MakeBaselineStepper(const StepperContext& context) {
  return std::make_unique<BaselineStepper>(context);
}

absl::StatusOr<bool> AllAgree(runtime::Collectives* collectives, bool fine) {
  if (collectives == nullptr) return fine;
  // Not in HBM: that may be what just ran out.
  const runtime::HostScope host("agreement of the ranks");
  at::Tensor failed = at::full({1}, fine ? 0.0 : 1.0, at::kDouble);
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
