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
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/torch/math/model_tensors.h"
#include "client/torch/memory/region_allocator.h"
#include "client/torch/ranks/collectives.h"
#include "client/torch/stream/fractions.h"
#include "client/torch/stream/shapes.h"
#include "proto/plan/profile.h"

namespace sluice::runtime {

struct StreamOptions {
  // Token fractions of the free classes (fractions.h); those that are not
  // named swap alpha and keep nothing (MEMO's policy).
  double alpha = 1.0;
  FractionMap fractions;
  int prefetch_depth = 2;  // slots of the block ring: one in use, the others
                           // in flight; 1 fetches nothing ahead
  int64_t ffn_chunk_rows = 0;   // rows of one FFN call; 0: half a chunk's
  int64_t loss_chunk_rows = 0;  // rows of logits at a time; 0: from the vocab
  // Runs only the first two chunks and the last (`--probe`): every segment
  // kind and all memory, but not a step whose numbers mean anything.
  bool probe = false;
};

// Everything a rank's streamed layers share: layout, copy engine, host arena,
// rings, kept rows. Made anew for another sequence length or other fractions.
class StreamContext {
 public:
  struct Options {
    ModelConfig model;
    ChunkLayout layout{0, 1, 1};
    int rank = 0;
    at::ScalarType dtype = at::kFloat;
    StreamOptions stream;
    Collectives* collectives = nullptr;  // outlive the context; may be null
                                         // with one rank
    client::CopyEngine* copies = nullptr;
    RegionAllocator* allocator = nullptr;  // null: plain tensors
    std::byte* host = nullptr;  // the leased host region, 64-byte aligned
    Bytes host_size;
  };
  // Allocates the rings and the kept rows (in HBM), lays out the host arena.
  // InvalidArgument: a shape or option out of range. ResourceExhausted: the
  // host region is too small: asked, given.
  static absl::StatusOr<std::unique_ptr<StreamContext>> Create(
      const Options& options);
  virtual ~StreamContext() = default;

  // Host bytes a rank needs for a whole training step of `options` (every
  // layer's saved rows, one layer's scratch, hidden states and gradients):
  // exact, what Create carves. Needs no `copies`, `collectives` or `host`.
  static Bytes HostBytes(const Options& options);
  // HBM that Create allocates: rings and accumulators (not transients), and
  // rows that are kept from forward to backward.
  static Bytes RingBytes(const Options& options);
  static Bytes KeptBytes(const Options& options);
  // What the planner needs of this rank: skeletal classes with bytes and
  // recompute times, fixed traffic, host bytes, windows. `recorded` are the
  // segment kinds of a calibration run with the same chunk size and ranks
  // (RegionAllocator::TakeRecorded); executions are filled in for
  // `options.layout`. job, rank, gpu, numa, transient_capacity and what is
  // asked for are the caller's.
  static plan::RankProfile Profile(
      const Options& options, const std::vector<plan::SegmentKind>& recorded);
  // Two full chunks and the tail of `layout`: the shortest sequence that runs
  // every segment kind a step of `layout` has.
  static ChunkLayout CalibrationLayout(const ChunkLayout& layout);
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
