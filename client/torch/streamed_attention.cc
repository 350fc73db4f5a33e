// FPDT's pipeline: blocks of chunked attention with k/v (forward) or queries
// (backward) streamed from host memory.
#include <array>

#include "client/torch/attention_blocks.h"
#include "client/torch/stream_context.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

// One query chunk with all that its backward blocks need.
struct QueryItem {
  at::Tensor q, output, lse, output_gradient, gradient;
};

std::vector<Block> ForwardBlocks(const std::vector<int64_t>& chunks) {
  std::vector<Block> blocks;
  for (size_t j = 0; j < chunks.size(); ++j) {
    for (size_t i = 0; i < j; ++i) blocks.push_back({chunks[i], chunks[j]});
  }
  return blocks;
}

std::vector<Block> BackwardBlocks(const std::vector<int64_t>& chunks) {
  std::vector<Block> blocks;
  for (size_t i = 0; i < chunks.size(); ++i) {
    for (size_t j = i; j < chunks.size(); ++j) {
      blocks.push_back({chunks[i], chunks[j]});
    }
  }
  return blocks;
}

void Accumulate(const at::Tensor& sum, const at::Tensor& part, bool first) {
  if (first) {
    sum.copy_(part);
  } else {
    sum.add_(part);
  }
}

class AttentionBackward {
 public:
  AttentionBackward(StreamState& state, int64_t layer)
      : state_(state),
        shape_(state.shape),
        layer_(layer),
        blocks_(BackwardBlocks(state.shape.active)),
        sent_(state.shape.chunks(), -1) {}

  absl::Status Run(const ChunkGradients& finished);

 private:
  bool FetchQuery(int64_t k, Fetch& fetch);
  absl::Status KeyChunk(int64_t i, Fetches& queries);
  QueryItem Take(Slot& slot, int64_t j) const;
  absl::Status RunBlock(const Block& block, const at::Tensor& k,
                        const at::Tensor& v, Fetches& queries);

  bool first(int64_t i) const { return i == shape_.active.front(); }

  StreamState& state_;
  const StreamShape& shape_;
  const int64_t layer_;
  const std::vector<Block> blocks_;
  size_t next_ = 0;  // of blocks_
  // The last key chunk whose dq_j has been sent back.
  std::vector<int64_t> sent_;
};

// dq_j of the previous key chunk must have been sent before it is fetched.
bool AttentionBackward::FetchQuery(int64_t k, Fetch& fetch) {
  const auto [i, j] = blocks_[k];
  const bool has_gradient = !first(i);
  if (has_gradient && sent_[j] < shape_.previous(i)) return false;
  HostStore& store = state_.store;
  FetchHeads(state_, layer_, Saved::kQ, j, fetch);
  fetch.Whole(store.saved(layer_, Saved::kO, j));
  fetch.Whole(store.saved(layer_, Saved::kLse, j));
  fetch.Whole(store.output_gradient(j));
  if (has_gradient) {
    fetch.Whole(store.query_gradient(j));
  } else {
    fetch.Field(shape_.query_gradient_bytes(j));
  }
  return true;
}

QueryItem AttentionBackward::Take(Slot& slot, int64_t j) const {
  const std::array<int64_t, 3> sizes = {shape_.rows(j), shape_.q_heads,
                                        shape_.dim};
  const at::ScalarType type = state_.options.dtype;
  QueryItem item;
  item.q = slot.Take(sizes, type);
  item.output = slot.Take(sizes, type);
  item.lse = slot.Take({shape_.q_heads, shape_.rows(j)}, at::kFloat);
  item.output_gradient = slot.Take(sizes, type);
  item.gradient = slot.Take(sizes, at::kFloat);
  return item;
}

absl::Status AttentionBackward::RunBlock(const Block& block,
                                         const at::Tensor& k,
                                         const at::Tensor& v,
                                         Fetches& queries) {
  const auto [i, j] = block;
  SLUICE_ASSIGN_OR_RETURN(Slot * slot, queries.Next());
  QueryItem item = Take(*slot, j);
  const bool diagonal = i == j;
  {
    SegmentScope segment(state_.options.allocator,
                         state_.Kind(diagonal ? "block.diagonal.backward"
                                              : "block.offdiagonal.backward",
                                     j));
    const BlockGradients gradients = AttendBlockBackward(
        item.output_gradient, item.q, k, v, item.output, item.lse, diagonal);
    // Explicit conversions, so that first and later blocks ask for the same
    // memory.
    const at::Tensor dq = gradients.q.to(at::kFloat);
    Accumulate(state_.key_gradient.narrow(0, 0, k.size(0)),
               gradients.k.to(at::kFloat), diagonal);
    Accumulate(state_.value_gradient.narrow(0, 0, k.size(0)),
               gradients.v.to(at::kFloat), diagonal);
    Accumulate(item.gradient, dq, first(i));
    if (diagonal) {  // no later key chunk: dq_j is whole
      state_.query_gradient.narrow(0, 0, item.gradient.size(0))
          .copy_(item.gradient);
    }
  }
  if (diagonal) {
    queries.Done();
    return absl::OkStatus();
  }
  sent_[j] = i;
  queries.Done(StagingRing::SendNow(state_.copies(), item.gradient,
                                    state_.store.query_gradient(j), "dq"));
  return absl::OkStatus();
}

absl::Status AttentionBackward::Run(const ChunkGradients& finished) {
  const std::vector<int64_t>& chunks = shape_.active;
  Fetches queries(&state_.blocks, static_cast<int64_t>(blocks_.size()),
                  "query chunk",
                  [&](int64_t k, Fetch& f) { return FetchQuery(k, f); });
  Fetches keys(&state_.keys, static_cast<int64_t>(chunks.size()), "k, v",
               [&](int64_t k, Fetch& fetch) {
                 FetchHeads(state_, layer_, Saved::kK, chunks[k], fetch);
                 FetchHeads(state_, layer_, Saved::kV, chunks[k], fetch);
                 return true;
               });
  for (const int64_t i : chunks) {
    SLUICE_ASSIGN_OR_RETURN(Slot * slot, keys.Next());
    const std::array<int64_t, 3> sizes = {shape_.rows(i), shape_.kv_heads,
                                          shape_.dim};
    const at::Tensor k = slot->Take(sizes, state_.options.dtype);
    const at::Tensor v = slot->Take(sizes, state_.options.dtype);
    while (next_ < blocks_.size() && blocks_[next_].i == i) {
      SLUICE_RETURN_IF_ERROR(RunBlock(blocks_[next_++], k, v, queries));
    }
    keys.Done();
    SLUICE_RETURN_IF_ERROR(finished(i));
  }
  return absl::OkStatus();
}

}  // namespace

AttentionForward::AttentionForward(StreamState& state, int64_t layer)
    : state_(state),
      blocks_(ForwardBlocks(state.shape.active)),
      fetches_(&state.blocks, static_cast<int64_t>(blocks_.size()), "k, v",
               [this, layer](int64_t n, Fetch& fetch) {
                 const int64_t i = blocks_[n].i;
                 if (i > sent_) return false;
                 FetchHeads(state_, layer, Saved::kK, i, fetch);
                 FetchHeads(state_, layer, Saved::kV, i, fetch);
                 return true;
               }) {}

absl::Status AttentionForward::Run(int64_t m, const Heads& heads,
                                   at::Tensor& output) {
  const StreamShape& shape = state_.shape;
  sent_ = m;
  fetches_.Pump();
  at::Tensor lse = heads.lse;
  {
    SegmentScope segment(state_.options.allocator,
                         state_.Kind("block.diagonal.forward", m));
    const BlockOutput block = AttendBlock(heads.q, heads.k, heads.v, true);
    output.copy_(block.output);
    lse.copy_(block.lse);
  }
  for (; next_ < blocks_.size() && blocks_[next_].j == m; ++next_) {
    SLUICE_ASSIGN_OR_RETURN(Slot * slot, fetches_.Next());
    const std::array<int64_t, 3> sizes = {shape.rows(blocks_[next_].i),
                                          shape.kv_heads, shape.dim};
    const at::Tensor k = slot->Take(sizes, state_.options.dtype);
    const at::Tensor v = slot->Take(sizes, state_.options.dtype);
    {
      SegmentScope segment(state_.options.allocator,
                           state_.Kind("block.offdiagonal.forward", m));
      MergeBlock(output, lse, AttendBlock(heads.q, k, v, false));
    }
    fetches_.Done();
  }
  return absl::OkStatus();
}

absl::Status StreamAttentionBackward(StreamState& state, int64_t layer,
                                     const ChunkGradients& finished) {
  return AttentionBackward(state, layer).Run(finished);
}

}  // namespace sluice::runtime
