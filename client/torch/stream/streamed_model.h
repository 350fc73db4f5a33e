// One training step of the whole streamed model: embedding, layers, final norm
// and chunked loss, and backward through all of it (README.md). What grows with
// the sequence is in the host lease, except tokens, labels, learned positions,
// kept rows and resident chunks.
//
// Thread safety: one compute thread per StreamContext.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/torch/math/model_tensors.h"
#include "client/torch/memory/region_allocator.h"
#include "client/torch/ranks/collectives.h"
#include "client/torch/stream/pending_weights.h"
#include "planner/stream/options.h"

namespace sluice::runtime {

// Has the layout, copy engine, host arena, rings and kept rows. Another
// sequence length or other fractions need a new context.
class StreamContext {
 public:
  struct Options {
    stream::StreamOptions stream;        // decides all sizes
    at::Device device;                   // of every tensor of a step
    Collectives* collectives = nullptr;  // outlive the context; may be null
                                         // with one rank
    client::CopyEngine* copies = nullptr;
    RegionAllocator* allocator = nullptr;  // null: plain tensors
    PendingWeights* pending = nullptr;     // null: all weights are up to date
    std::byte* host = nullptr;  // the leased host region, 64-byte aligned
    Bytes host_size;
  };
  // Allocates the rings and the kept rows (in HBM) and lays out the host arena,
  // with exactly the sizes of planner/stream/stream_shape.h. InvalidArgument: a
  // shape or option out of range. Unimplemented: this build has no attention on
  // the device. ResourceExhausted: the host region is too small; the message
  // has the needed and the given size.
  static absl::StatusOr<std::unique_ptr<StreamContext>> Create(
      const Options& options);
  virtual ~StreamContext() = default;
};

// Adds the gradients of (sum of this rank's losses / `global_count`) to
// `gradients` (fp32; the trainer zeroes them and sums them over the ranks).
//
// `tokens` and `labels` are int64 [layout.total_local_rows(rank)] in HBM: this
// rank's rows of chunk 0, then of chunk 1, ... Labels are already shifted; -100
// is ignored. `global_count` is the number of labels other than -100 over all
// ranks (and micro-batches). InvalidArgument: a tensor on another device than
// the context's, or with another number of rows.
absl::StatusOr<StepResult> StreamedStep(StreamContext& context,
                                        const ModelTensors& weights,
                                        ModelTensors& gradients,
                                        const at::Tensor& tokens,
                                        const at::Tensor& labels,
                                        int64_t global_count);

}  // namespace sluice::runtime
