// The implementation of StreamContext, shared by the files of the streamed
// layer.
//
// Thread safety: the compute thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/torch/math/attention_blocks.h"
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
  std::string Kind(stream::Segment segment, int64_t m) const {
    return stream::KindOf(segment, shape.full(m));
  }
  absl::StatusOr<std::unique_ptr<ChunkHandle>> NewHidden();
  NormWeights Norm(const at::Tensor& weight, const at::Tensor& bias) const {
    return {model().norm, weight, bias, model().norm_epsilon};
  }
  RowRuns Whole(int64_t m) const { return RowRuns::Whole(shape.layout, m); }
  // Returns the dropped rows of q, k or v, rank after rank without gaps.
  RowRuns Dropped(stream::Class which, int64_t m) const;
  // Returns tables for this rank's rows of chunk m from its `skip`-th on;
  // undefined except for Llama.
  RopeTables Rope(int64_t m, int64_t skip) const;
  bool rope() const { return model().rope.has_value(); }

  const stream::ModelShape& model() const { return options.stream.model; }

  const Options options;
  const stream::StreamShape shape;
  const at::ScalarType dtype;         // of weights and activations
  const std::vector<int64_t> active;  // chunks that a step runs
  const std::vector<int64_t> rerun;   // chunks of `active` that run again
  ChunkStore store;
  KeptStore kept;
  HeadExchange exchange;

  // Write (in forward) and Read (in backward) give access to a class's rows of
  // chunk m, with the next piece of the staging slot or of `slot`.
  RowWriter Write(int64_t layer, stream::Class which, int64_t m);
  RowReader Read(int64_t layer, stream::Class which, int64_t m, Slot& slot);

  // Cuts the ring memory for `phase`, unless it is cut so, once all copies of
  // the former phase have ended. No fetch program of that phase may be alive.
  absl::Status Enter(stream::Phase phase);
  // The first fetches of phase `next` may arrive while the last chunk of this
  // phase, `unsent`, is computed, in slots behind the memory that it still uses
  // (staging, inputs, sums). Fetches of `unsent` wait for Enter.
  absl::Status Prepare(stream::Phase next, int64_t unsent);
  // Returns the chunk that no fetch may read yet; -1 if there is none.
  int64_t unsent() const { return unsent_; }
  StagingRing& staging() { return rings_->staging; }
  // These return rings of the prepared phase if there is one, else the current.
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
  // These return chunk m's fp32 dq, dk, dv in the attention phase. The outer
  // side's are summed there; the inner side's are copied there once complete.
  at::Tensor query_sum(int64_t m) {
    return Sum(rings_->query_sum, stream::Class::kQueryGradient, m);
  }
  at::Tensor key_sum(int64_t m) {
    return Sum(rings_->key_sum, stream::Class::kKeyGradient, m);
  }
  at::Tensor value_sum(int64_t m) {
    return Sum(rings_->value_sum, stream::Class::kValueGradient, m);
  }

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
  absl::Status AwaitUses(std::initializer_list<const FetchRing*> rings,
                         const StagingRing* staging);
  at::Tensor Sum(const at::Tensor& largest, stream::Class which, int64_t m);

  at::Tensor memory_;
  std::unique_ptr<Rings> rings_, next_;
  int64_t unsent_ = -1;
};

// --- a layer (streamed_forward.cc, streamed_backward.cc) ---------------------
struct LayerOutput {
  std::unique_ptr<ChunkHandle> output;
  std::unique_ptr<SavedLayer> saved;  // owns the input handle
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

// --- chunked attention (streamed_attention.cc) ------------------------------
// A chunk in head layout: q, k, v [rows, heads, dim], o as q, lse [heads,
// rows]. q, o and lse have the rows of this rank's part.
struct Heads {
  at::Tensor q, k, v, o, lse;
};

// Runs one layer's attention chunk by chunk. Keys and values of earlier chunks
// are fetched ahead of their use, even across chunks.
class AttentionForward {
 public:
  // `chunks` are the chunks to run: the first ones of the step.
  AttentionForward(StreamState& state, int64_t layer,
                   const std::vector<int64_t>& chunks);
  // Attends chunk m to chunks 0..m; fills `output` (fp32) and heads.lse.
  // REQUIRES: m's k and v have been sent (flushed).
  absl::Status Run(int64_t m, const Heads& heads, const at::Tensor& output);

 private:
  StreamState& state_;
  const std::vector<stream::Block> blocks_;
  size_t next_ = 0;
  int64_t sent_ = -1;  // the last chunk with k and v sent
  Fetches fetches_;
};

// The attention of one layer's backward: all blocks, with one side's chunks
// outer and the other side's inner (stream::BackwardOrder).
class AttentionBackward {
 public:
  AttentionBackward(StreamState& state, int64_t layer);
  // Issues the fetches that could not be issued before the phase began.
  void Pump();
  // Calls `finished` for each outer chunk once its gradients are complete, in
  // state.query_sum, key_sum, value_sum.
  absl::Status Run(const std::function<absl::Status(int64_t m)>& finished);

 private:
  struct Keys {
    at::Tensor k, v;
  };
  // The inner side's gradients: dq, or dk and dv.
  using Gradients = std::vector<at::Tensor>;

  int64_t OuterOf(const stream::Block& block) const {
    return keys_outer_ ? block.i : block.j;
  }
  int64_t InnerOf(const stream::Block& block) const {
    return keys_outer_ ? block.j : block.i;
  }
  void FetchKeys(int64_t i, Fetch& fetch);
  void FetchQueries(int64_t j, Fetch& fetch);
  bool FetchGradients(const stream::Block& block, Fetch& fetch);
  Keys TakeKeys(Slot& slot, int64_t i) const;
  QueryRows TakeQueries(Slot& slot, int64_t j) const;
  Gradients TakeGradients(Slot& slot, int64_t m) const;
  absl::Status RunBlock(const stream::Block& block, const Keys& keys,
                        const QueryRows& queries);
  void Compute(const stream::Block& block, const Keys& keys,
               const QueryRows& queries, const Gradients& inner);
  void Whole(int64_t m, const Gradients& inner);

  StreamState& state_;
  const stream::StreamShape& shape_;
  const int64_t layer_;
  const bool keys_outer_;
  const std::vector<int64_t> outer_;
  const std::vector<stream::Block> blocks_;
  const std::vector<stream::Class> summed_;  // of the inner side
  size_t next_ = 0;                          // of blocks_
  // By inner chunk: the last outer chunk after which its gradients were sent.
  std::vector<int64_t> sent_;
  Fetches outer_fetches_, inner_fetches_;
  // Gradients have their own ring: a slot is in use until they are back in host
  // memory, and the next inner chunk need not wait for that.
  Fetches gradients_;
};

// --- pieces shared by forward and recomputation -----------------------------
struct Projected {
  at::Tensor q, k, v;  // [rows, heads, dim], after RoPE, token layout
};
// Projects this rank's normed rows of chunk m, into `to` if it is defined.
Projected Project(const StreamState& state, const LayerTensors& weights,
                  const at::Tensor& normed, int64_t m, const Projected& to);
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

// Calls body(first, rows) for [begin, end) in runs of at most `step` rows.
void ForRows(int64_t begin, int64_t end, int64_t step, auto body) {
  for (int64_t row = begin; row < end; row += step) {
    body(row, std::min(step, end - row));
  }
}

}  // namespace sluice::runtime
