#include "client/torch/run/rehearsal.h"

#include <ATen/ops/zeros.h>

#include "client/torch/placement.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

absl::Status RunSteps(const StepperContext& context,
                      const runtime::StreamContext::Options& options,
                      int times) {
  SLUICE_ASSIGN_OR_RETURN(const auto stream,
                          runtime::StreamContext::Create(options));
  const int64_t rows =
      options.stream.layout.total_local_rows(options.stream.rank);
  const at::Tensor tokens =
      at::zeros({rows}, runtime::On(options.device, at::kLong));
  for (int i = 0; i < times; ++i) {
    SLUICE_RETURN_IF_ERROR(ClassifyStepError(
        runtime::StreamedStep(*stream, context.weights->tensors(),
                              context.gradients->tensors(), tokens, tokens,
                              options.stream.layout.seq_len())
            .status()));
  }
  return absl::OkStatus();
}

}  // namespace

runtime::StreamContext::Options ContextOptions(
    const StepperContext& context, const stream::StreamOptions& stream,
    client::CopyEngine* copies) {
  return {.stream = stream,
          .device = context.memory->device(),
          .collectives = context.collectives,
          .copies = copies,
          .allocator = &context.memory->allocator()};
}

absl::StatusOr<std::vector<plan::SegmentKind>> Rehearse(
    const StepperContext& context,
    const runtime::StreamContext::Options& options, int times) {
  runtime::RegionAllocator& allocator = context.memory->allocator();
  context.watch->BeginCalibration(options.stream.model.layers,
                                  options.stream.layout.chunks());
  allocator.RecordSegments(true);
  const absl::Status status = RunSteps(context, options, times);
  const absl::Status drained = options.copies->Drain();
  allocator.RecordSegments(false);
  SLUICE_RETURN_IF_ERROR(drained);
  SLUICE_RETURN_IF_ERROR(status);
  context.gradients->flat().zero_();
  return allocator.TakeRecorded();
}

}  // namespace sluice::train
