// The methods that Sluice is compared with: libtorch autograd over the same
// weights, with Ulysses head exchange, ATen's flash attention and a loss in
// which logits are never whole.
//
//   keep-all   every layer's autograd graph stays until its backward
//   recompute  only layer inputs stay; a layer runs again, with gradients, in
//              backward (full activation checkpointing)
//   alst       layer inputs are in host memory; all of a layer but attention
//              runs over tiles of rows, in forward and when it is recomputed
//
// Backward runs one layer at a time. Besides weights and gradients, recompute's
// peak is at most (layers + 32) x [local rows, hidden]; alst's is at most 14 x
// [local rows, hidden] and one tile's tensors (tested).
//
// The sequence is one chunk: rank r has the rows of ChunkLayout(seq_len,
// seq_len, ranks) from local_offset(0, r) on.
//
// Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"
#include "client/torch/math/model_tensors.h"
#include "client/torch/memory/region_allocator.h"
#include "client/torch/ranks/collectives.h"
#include "planner/stream/layouts.h"

namespace sluice::runtime {

// Keeps the inputs of alst's layers in leased host memory, copied by the rank's
// engine.
//
//   forward   Save(i, x) copies x out; x may be written after AwaitSaved
//   backward  Fetch(i) may start the copy back early; Take(i) waits and returns
//             the tensor
//
// Keeps every tensor alive that a copy reads or writes, so that its memory is
// not reused. Settle waits for these copies after a failed step.
class HostInputs {
 public:
  struct Options {
    int64_t layers = 0, rows = 0, hidden = 0;  // rows: of this rank
    at::ScalarType dtype = at::kFloat;
    at::Device device;                     // of the fetched inputs
    client::CopyEngine* copies = nullptr;  // outlives the inputs
    std::byte* host = nullptr;             // leased; outlives the inputs
    Bytes host_size;
  };
  // Returns the host memory that a step needs, to the byte.
  static Bytes HostBytes(const Options& options);
  // ResourceExhausted: `host_size` is less than HostBytes.
  static absl::StatusOr<std::unique_ptr<HostInputs>> Create(
      const Options& options);
  ~HostInputs() { Settle(); }
  HostInputs(const HostInputs&) = delete;

  // Starts the copy out of `x`, which is [rows, hidden] and contiguous.
  void Save(int64_t layer, const at::Tensor& x);
  absl::Status AwaitSaved();

  // Does nothing if the copy has begun. May throw c10::OutOfMemoryError.
  void Fetch(int64_t layer);
  absl::StatusOr<at::Tensor> Take(int64_t layer);

  void Settle();

 private:
  explicit HostInputs(const Options& options)
      : options_(options), stored_(options.layers) {}
  std::byte* HostOf(int64_t layer) const;

  struct Stored {
    client::Ticket written, read;
  };
  struct InFlight {
    int64_t layer;
    at::Tensor tensor;
  };

  const Options options_;
  std::vector<Stored> stored_;
  std::optional<InFlight> leaving_, arriving_;
};

enum class BaselineMethod { kKeepAll, kRecompute, kAlst };

struct BaselineOptions {
  stream::ModelShape model;
  int64_t seq_len = 0;
  BaselineMethod method = BaselineMethod::kRecompute;
  at::Device device;                   // of all tensors
  Collectives* collectives = nullptr;  // null: one rank; outlives the call
  // May be null. Marks layers as segments "layer.forward", "layer.backward".
  RegionAllocator* allocator = nullptr;
  // alst only.
  HostInputs* inputs = nullptr;  // of this model and rank; outlives the call
  int64_t tile_rows = 0;         // 0: as many as `hidden`

  int ranks() const { return collectives ? collectives->world_size() : 1; }
  int rank() const { return collectives ? collectives->rank() : 0; }
};

// Adds the gradients of (sum of this rank's losses / `global_count`) to
// `gradients` (fp32; the trainer sums them over ranks).
//
// `tokens` and `labels` are int64 [local rows]; labels are already shifted,
// -100 is ignored. InvalidArgument: a tensor on another device or with other
// rows; Unimplemented: a device without attention; ResourceExhausted: out of
// memory, with the allocator's line; Unavailable: a collective failed.
absl::StatusOr<StepResult> BaselineStep(const BaselineOptions& options,
                                        const ModelTensors& weights,
                                        ModelTensors& gradients,
                                        const at::Tensor& tokens,
                                        const at::Tensor& labels,
                                        int64_t global_count);

}  // namespace sluice::runtime
