// A transformer layer as a stream of chunks: FPDT's chunked attention with k/v
// in host memory, MEMO's token-wise swap and recompute. (o, lse) is kept, so
// attention is recomputed only for the chunks that run again.
//
// A layer is a function: (handle of its input chunks, weights, plan) -> handle
// of its output chunks; backward returns dX and adds to weight gradients. It
// owns no parameters, optimizer or data.
//
// Everything that grows with the sequence is in the host lease, except rows
// that are to be kept. HBM holds the buffers of one or two chunks (staging
// ring, fetch rings, transients).
//
// Ordering: each host buffer has two tickets ("its bytes are there", "its last
// fetch is over"), each ring slot a ticket of its last use. Compute waits on
// tickets only, never on a stream. With SLUICE_POISON=1, slots that were freed
// or have not arrived are poisoned.
//
// Segments: every piece of compute runs in a SegmentScope of a kind that ends
// in ".full" or ".tail"; README.md lists them. The requests of a kind depend
// only on shapes and fractions, never on the number of chunks.
//
// Thread safety: one compute thread per StreamContext.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "absl/status/statusor.h"
#include "client/torch/math/model_tensors.h"
#include "client/torch/stream/stream_context.h"

namespace sluice::runtime {

// Chunks of hidden states [local rows, hidden], in host memory or HBM. Releases
// its memory when destroyed, which must happen before the context is destroyed.
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

// Runs a layer's forward. `layer` chooses the saved layer's place in the arena;
// one forward of a layer may be waiting for its backward at a time.
absl::StatusOr<LayerOutput> LayerForward(StreamContext& context,
                                         const LayerTensors& weights,
                                         std::unique_ptr<ChunkHandle> input,
                                         int64_t layer);

// Runs forward a second time for the chunks of StreamOptions::rerun_chunks, to
// make what backward needs of them besides the input. `output` (the next
// layer's input) may be null if this layer's backward is next.
absl::Status LayerRerun(StreamContext& context, const LayerTensors& weights,
                        SavedLayer& saved, ChunkHandle* output);

// Consumes dY and what forward saved, adds to `gradients`, and returns dX (in
// dY's memory). `next` is the layer of the next call, which takes this dX; its
// first inputs are fetched while this layer's last chunk is computed.
absl::StatusOr<std::unique_ptr<ChunkHandle>> LayerBackward(
    StreamContext& context, const LayerTensors& weights,
    LayerTensors& gradients, std::unique_ptr<SavedLayer> saved,
    std::unique_ptr<ChunkHandle> output_gradient,
    const SavedLayer* next = nullptr);

}  // namespace sluice::runtime
