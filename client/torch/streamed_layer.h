// A transformer layer as a stream of chunks: FPDT's chunked attention with
// k/v in host memory, MEMO's token-wise swap and recompute, (o, lse) kept so
// that attention is never recomputed.
//
// A layer is a function: (handle of its input chunks, weights, plan) -> handle
// of its output chunks; backward returns dX and adds to weight gradients. It
// owns no parameters, optimizer or data.
//
// Everything that grows with the sequence lives in the host lease; in HBM are
// the buffers of one or two chunks (staging ring, fetch ring, transients).
//
// Ordering: each host chunk carries a ticket ("its bytes are there"), each
// ring slot a ticket of its last use; compute waits on tickets only. Debug
// builds poison slots that were freed or have not arrived.
//
// Thread safety: one compute thread per StreamContext.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/copy_engine.h"
#include "client/torch/collectives.h"
#include "client/torch/model_tensors.h"
#include "client/torch/region_allocator.h"
#include "client/torch/shapes.h"
#include "proto/plan/profile.h"

namespace sluice::runtime {

struct StreamOptions {
  double alpha = 1.0;        // token fraction of free classes kept in host
  int prefetch_depth = 2;    // k/v (forward) or q (backward) chunks in flight
  int64_t ffn_chunk_rows = 0;  // rows of one FFN call; 0: half a chunk
};

// Everything a rank's streamed layers share: layout, copy engine, host arena,
// rings. Made anew for another sequence length or alpha.
class StreamContext {
 public:
  struct Options {
    ModelConfig model;
    ChunkLayout layout;
    int rank = 0;
    at::ScalarType dtype = at::kFloat;
    StreamOptions stream;
    Collectives* collectives = nullptr;      // outlive the context
    client::CopyEngine* copies = nullptr;
    RegionAllocator* allocator = nullptr;    // null: plain tensors
    std::byte* host = nullptr;               // the leased host region
    Bytes host_size;
  };
  // Allocates the rings (in HBM) and lays out the host arena.
  // ResourceExhausted: host arena too small: asked, given.
  static absl::StatusOr<std::unique_ptr<StreamContext>> Create(
      const Options& options);
  virtual ~StreamContext() = default;

  // Host bytes a rank needs for a whole training step of `options` (every
  // layer's saved rows, one layer's scratch, hidden states and dX).
  static Bytes HostBytes(const Options& options);
  // Skeletal classes, fixed traffic and host bytes for the planner; windows
  // and segments are filled in by the recorder.
  static plan::RankProfile Profile(const Options& options);
};

// Chunks of hidden states [local rows, hidden], wherever they are. Move-only;
// gives its memory back when destroyed.
class ChunkHandle;
// What backward needs of one layer's forward. Move-only.
class SavedLayer;

struct LayerOutput {
  std::unique_ptr<ChunkHandle> output;
  std::unique_ptr<SavedLayer> saved;  // owns the input handle
};

absl::StatusOr<LayerOutput> LayerForward(StreamContext& context,
                                         const LayerTensors& weights,
                                         std::unique_ptr<ChunkHandle> input,
                                         int64_t layer);

// Consumes dY and what forward saved; adds to `gradients`; returns dX.
absl::StatusOr<std::unique_ptr<ChunkHandle>> LayerBackward(
    StreamContext& context, const LayerTensors& weights,
    LayerTensors& gradients, std::unique_ptr<SavedLayer> saved,
    std::unique_ptr<ChunkHandle> output_gradient, int64_t layer);

// Writing chunks into a new handle (embedding), and walking one in order with
// prefetch (the loss): see client/torch/chunk_io.h.

}  // namespace sluice::runtime
