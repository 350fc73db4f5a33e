// The implementation of StreamContext, shared by the files of the streamed
// layer.
//
// Thread safety: the compute thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "client/torch/math/token_math.h"
#include "client/torch/ranks/ulysses.h"
#include "client/torch/stream/chunk_io.h"
#include "client/torch/stream/chunk_store.h"
#include "client/torch/stream/streamed_model.h"
#include "planner/stream/schedule.h"
#include "planner/stream/stream_shape.h"

namespace sluice::runtime {

class StreamState final : public StreamContext {
 public:
  explicit StreamState(const Options& options);
  // Waits for copies, which may be in flight after a failed step.
  ~StreamState() override;

  static StreamState& Of(StreamContext& context) {
    return static_cast<StreamState&>(context);
  }

  client::CopyEngine& copies() { return *options.copies; }
  SegmentScope Segment(stream::Segment segment, int64_t m) const {
    return {options.allocator, stream::KindOf(segment, shape.full(m))};
  }
  absl::StatusOr<std::unique_ptr<ChunkHandle>> NewHidden();
  NormWeights Norm(const at::Tensor& weight, const at::Tensor& bias) const {
    return {model().norm, weight, bias, model().norm_epsilon};
  }
  NormWeights Norm1(const LayerTensors& layer) const {
    return Norm(layer.norm1_weight, layer.norm1_bias);
  }
  NormWeights Norm2(const LayerTensors& layer) const {
    return Norm(layer.norm2_weight, layer.norm2_bias);
  }
  RowRuns Whole(int64_t m) const { return RowRuns::Whole(shape.layout, m); }
  // Returns the dropped rows of q, k or v, rank after rank without gaps.
  RowRuns Dropped(stream::Class which, int64_t m) const;
  // Returns tables for this rank's rows of chunk m from its `skip`-th on;
  // undefined for models without RoPE.
  RopeTables Rope(int64_t m, int64_t skip) const;
  bool rope() const { return model().rope.has_value(); }
  // Exchanges `o`, attention's output of chunk m in head layout, for the output
  // of this rank's rows: [rows, query width].
  absl::StatusOr<at::Tensor> OutputHome(int64_t m, const at::Tensor& o);

  const stream::ModelShape& model() const { return options.stream.model; }

  const Options options;
  const stream::StreamShape shape;
  const at::ScalarType dtype;         // of weights and activations
  const std::vector<int64_t> active;  // chunks that a step runs
  const std::vector<int64_t> rerun;   // chunks of `active` that run again
  ChunkStore store;
  KeptStore kept;
  HeadExchange exchange;

  // Return access to a class's rows of chunk m, in forward (Write) or backward
  // (Read), with the next piece of the staging slot or of `slot`.
  RowWriter Write(int64_t layer, stream::Class which, int64_t m);
  RowReader Read(int64_t layer, stream::Class which, int64_t m, Slot& slot);

  // Cuts the ring memory for `phase`, unless it is the current one, once all
  // copies of the former phase have ended. REQUIRES: no Fetches of the former
  // phase is alive.
  absl::Status Enter(stream::Phase phase);
  // Lets the first fetches of phase `next` arrive while the last chunk of this
  // phase, `unsent`, is computed, in slots behind the memory that this phase
  // still uses (staging, inputs, sums). Fetches of `unsent` wait for Enter.
  absl::Status Prepare(stream::Phase next, int64_t unsent);
  // Returns the chunk that no fetch may read yet; -1 if there is none.
  int64_t unsent() const { return unsent_; }
  StagingRing& staging() { return rings_->staging; }
  // Return rings of the prepared phase if there is one, else the current ones.
  FetchRing& inputs() { return latest().inputs; }
  FetchRing& blocks() { return latest().blocks; }
  FetchRing& gradients() { return latest().gradients; }
  FetchRing& outer() { return latest().outer; }
  // The fetches of the token phase of a layer's backward. Made when the layer
  // above prepares that phase, or when the phase begins.
  std::optional<Fetches> saved_rows;
  // Returns the dtype in which attention's output is stored.
  at::ScalarType output_type() const {
    return shape.output_element == 4 ? at::kFloat : dtype;
  }
  // Returns the fp32 sum of chunk m's attention output in forward, used if the
  // output is stored in a narrower type.
  at::Tensor output_sum(int64_t m) {
    return rings_->query_sum.narrow(0, 0, shape.queries(m));
  }
  // Returns chunk m's fp32 dq, dk or dv in the attention phase. The outer
  // side's are summed there; the inner side's are copied there once complete.
  at::Tensor sum(stream::Class gradient, int64_t m);

 private:
  struct Rings {
    stream::Phase phase;
    StagingRing staging;
    FetchRing inputs;
    at::Tensor query_sum, key_sum, value_sum;
    const std::byte* front_end;          // end of the members above
    FetchRing blocks, outer, gradients;  // cut from the end
  };
  Rings& latest() { return next_ != nullptr ? *next_ : *rings_; }
  // `in_use_to` is the end of the memory that the former phase still uses.
  std::unique_ptr<Rings> Cut(stream::Phase phase, const client::Ticket& free,
                             const std::byte* in_use_to);

  at::Tensor memory_;
  std::unique_ptr<Rings> rings_, next_;
  int64_t unsent_ = -1;
};

// --- a layer (streamed_forward.cc, streamed_backward.cc) ---------------------

// Runs a layer's forward. `layer` chooses the place of its saved rows; one
// forward of a layer may be waiting for its backward at a time.
//
// `again` runs it a second time, for the chunks of StreamOptions::rerun_chunks,
// to make what backward needs of them besides the input. `output` (the next
// layer's input) may then be null: this layer's backward is next.
absl::Status LayerForward(StreamState& state, const LayerTensors& weights,
                          ChunkHandle& input, ChunkHandle* output,
                          int64_t layer, bool again);

// Consumes what forward saved, adds to `gradients`, and turns `gradient` from
// dY into dX. `next_input` is the input of the layer below if that layer's
// backward is next: the first fetches of that backward are issued while this
// layer's last chunk is computed.
absl::Status LayerBackward(StreamState& state, const LayerTensors& weights,
                           LayerTensors& gradients, ChunkHandle& input,
                           ChunkHandle& gradient, int64_t layer,
                           ChunkHandle* next_input);

// --- pieces shared by forward and recomputation -----------------------------

// Projects this rank's normed rows of chunk m, into `to` if it is defined.
// Returns q, k, v in token layout, after RoPE.
HeadTensors Project(const StreamState& state, const LayerTensors& weights,
                    const at::Tensor& normed, int64_t m, const HeadTensors& to);
// Projects q, k or v of some rows; `tables` are for these rows.
at::Tensor ProjectOne(const StreamState& state, const LayerTensors& weights,
                      stream::Class which, const at::Tensor& normed,
                      const RopeTables& tables, const at::Tensor& to);

// Adds the field of a q, k or v chunk in head layout to a fetch.
void FetchHeads(StreamState& state, int64_t layer, stream::Class which,
                int64_t m, Fetch& fetch);
// Sends stored rows to their place, dropped rows to scratch (`with_dropped`).
void SendHeads(StreamState& state, int64_t layer, stream::Class which,
               int64_t m, const at::Tensor& heads, bool with_dropped);

// Calls body(first, rows) for [0, end) in runs of at most `step` rows.
void ForRows(int64_t end, int64_t step, auto body) {
  for (int64_t row = 0; row < end; row += step) {
    body(row, std::min(step, end - row));
  }
}

}  // namespace sluice::runtime
