#include "client/torch/stream/stream_context.h"

#include <fmt/format.h>

#include "client/torch/backend/backend.h"
#include "client/torch/exceptions.h"
#include "client/torch/stream/stream_state.h"
#include "planner/stream/stream_shape.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

absl::Status Validate(const StreamContext::Options& options) {
  SLUICE_RETURN_IF_ERROR(stream::Validate(options.stream));
  if (options.copies == nullptr ||
      (options.stream.layout.ranks() > 1 && options.collectives == nullptr)) {
    return absl::InvalidArgumentError(
        "a streamed step needs a copy engine, and collectives when there are "
        "several ranks");
  }
  return CheckBackend(options.device, TorchType(options.stream.dtype),
                      options.stream.model.head_dim());
}

}  // namespace

absl::StatusOr<std::unique_ptr<StreamContext>> StreamContext::Create(
    const Options& options) {
  SLUICE_RETURN_IF_ERROR(Validate(options));
  const Bytes needed(stream::StreamShape(options.stream).host_bytes());
  if (needed > options.host_size) {
    return ShortOf(Shortage::kHostMemory,
                   fmt::format("a step of {} tokens needs {} bytes of host "
                               "memory for this rank, the "
                               "leased region has {}",
                               options.stream.layout.seq_len(), needed.count(),
                               options.host_size.count()));
  }
  using Result = absl::StatusOr<std::unique_ptr<StreamContext>>;
  return CatchStatus(
      "allocate the rings of the streamed layer",
      [&]() -> Result { return std::make_unique<StreamState>(options); });
}

}  // namespace sluice::runtime
