// The state that a rank's streamed layers share (streamed_layer.h).
//
// Thread safety: one compute thread per StreamContext.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/torch/memory/region_allocator.h"
#include "client/torch/ranks/collectives.h"
#include "client/torch/stream/pending_weights.h"
#include "planner/stream/options.h"

namespace sluice::runtime {

// Layout, copy engine, host arena, rings, kept rows. Another sequence length or
// other fractions need a new context.
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

}  // namespace sluice::runtime
