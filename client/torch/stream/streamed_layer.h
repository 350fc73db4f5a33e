// A transformer layer as a stream of chunks: FPDT's chunked attention with
// k/v in host memory, MEMO's token-wise swap and recompute, (o, lse) kept so
// that attention is never recomputed.
//
// A layer is a function: (handle of its input chunks, weights, plan) -> handle
// of its output chunks; backward returns dX and adds to weight gradients. It
// owns no parameters, optimizer or data.
//
// Everything that grows with the sequence lives in the host lease, but for rows
// that are to be kept; in HBM are the buffers of one or two chunks (staging
// ring, fetch rings, transients).
//
// Ordering: each host buffer carries tickets ("its bytes are there", "its last
// fetch is over"), each ring slot a ticket of its last use; compute waits on
// tickets only, never on a stream. Debug builds (SLUICE_POISON) poison slots
// that were freed or have not arrived.
//
// Segments: every piece of compute runs in a SegmentScope whose kind ends in
// ".full" or ".tail"; README.md lists them. The requests of a kind depend on
// shapes and fractions only, never on the number of chunks.
//
// Thread safety: one compute thread per StreamContext.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/torch/math/model_tensors.h"
#include "client/torch/memory/region_allocator.h"
#include "client/torch/ranks/collectives.h"
#include "planner/stream/options.h"

namespace sluice::runtime {

// Everything a rank's streamed layers share: layout, copy engine, host arena,
// rings, kept rows. Made anew for another sequence length or other fractions.
class StreamContext {
 public:
  struct Options {
    stream::StreamOptions stream;        // what decides all sizes
    at::Device device;                   // of every tensor of a step
    Collectives* collectives = nullptr;  // outlive the context; may be null
                                         // with one rank
    client::CopyEngine* copies = nullptr;
    RegionAllocator* allocator = nullptr;  // null: plain tensors
    std::byte* host = nullptr;  // the leased host region, 64-byte aligned
    Bytes host_size;
  };
  // Allocates the rings and the kept rows (in HBM), lays out the host arena:
  // what planner/stream/stream_shape.h says in bytes, no more and no less.
  // InvalidArgument: a shape or option out of range. Unimplemented: a device
  // that this build has no attention on. ResourceExhausted: the
  // host region is too small: asked, given.
  static absl::StatusOr<std::unique_ptr<StreamContext>> Create(
      const Options& options);
  virtual ~StreamContext() = default;
};

// Chunks of hidden states [local rows, hidden], wherever they are. Gives its
// memory back when destroyed, which must be before the context is.
class ChunkHandle;
// What backward needs of one layer's forward. Move-only.
struct SavedLayer;

struct LayerOutput {
  std::unique_ptr<ChunkHandle> output;
  std::unique_ptr<SavedLayer> saved;  // owns the input handle
  LayerOutput();
  LayerOutput(LayerOutput&&) noexcept;
  LayerOutput& operator=(LayerOutput&&) noexcept;
  ~LayerOutput();
};

// `layer` chooses the saved layer's place in the arena; one forward of a layer
// may be waiting for its backward at a time.
absl::StatusOr<LayerOutput> LayerForward(StreamContext& context,
                                         const LayerTensors& weights,
                                         std::unique_ptr<ChunkHandle> input,
                                         int64_t layer);

// Consumes dY and what forward saved; adds to `gradients`; returns dX (in the
// memory dY had).
absl::StatusOr<std::unique_ptr<ChunkHandle>> LayerBackward(
    StreamContext& context, const LayerTensors& weights,
    LayerTensors& gradients, std::unique_ptr<SavedLayer> saved,
    std::unique_ptr<ChunkHandle> output_gradient);

}  // namespace sluice::runtime
