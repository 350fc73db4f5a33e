#include "client/torch/run/calibration.h"

#include <ATen/ops/zeros.h>

#include "client/torch/placement.h"
#include "client/torch/stream/streamed_model.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

absl::Status RunSteps(const RunContext& context,
                      const StreamContext::Options& options, int times) {
  SLUICE_ASSIGN_OR_RETURN(const auto stream, StreamContext::Create(options));
  const int64_t rows =
      options.stream.layout.total_local_rows(options.stream.rank);
  const at::Tensor tokens = at::zeros({rows}, On(options.device, at::kLong));
  for (int i = 0; i < times; ++i) {
    SLUICE_RETURN_IF_ERROR(StreamedStep(*stream, context.weights->weights(),
                                        context.weights->gradients(), tokens,
                                        tokens, options.stream.layout.seq_len())
                               .status());
  }
  return absl::OkStatus();
}

}  // namespace

StreamContext::Options ContextOptions(const RunContext& context,
                                      const stream::StreamOptions& stream,
                                      client::CopyEngine* copies) {
  return {.stream = stream,
          .device = context.memory->device(),
          .collectives = context.collectives,
          .copies = copies,
          .allocator = &context.memory->allocator(),
          .pending = context.weights};
}

absl::StatusOr<std::vector<plan::SegmentKind>> RunCalibration(
    const RunContext& context, const StreamContext::Options& options,
    int times) {
  RegionAllocator& allocator = context.memory->allocator();
  if (context.watch != nullptr) {
    context.watch->BeginCalibration(options.stream.model.layers,
                                    options.stream.layout.chunks());
  }
  allocator.RecordSegments(true);
  const absl::Status status = RunSteps(context, options, times);
  const absl::Status drained = options.copies->Drain();
  allocator.RecordSegments(false);
  SLUICE_RETURN_IF_ERROR(drained);
  SLUICE_RETURN_IF_ERROR(status);
  context.weights->ZeroGradients();
  std::vector<plan::SegmentKind> kinds = allocator.TakeRecorded();
  SLUICE_RETURN_IF_ERROR(allocator.times_fault());
  return kinds;
}

}  // namespace sluice::runtime
