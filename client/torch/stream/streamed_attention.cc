// FPDT's pipeline: blocks of chunked attention with k/v (forward) or queries
// (backward) streamed from host memory.
#include <array>

#include "client/torch/math/attention_blocks.h"
#include "client/torch/stream/stream_context.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

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

}  // namespace

AttentionBackward::AttentionBackward(StreamState& state, int64_t layer)
    : state_(state),
      shape_(state.shape),
      layer_(layer),
      blocks_(BackwardBlocks(state.shape.active)),
      sent_(state.shape.chunks(), -1),
      keys_(&state.keys(), static_cast<int64_t>(shape_.active.size()), "k, v",
            [this](int64_t k, Fetch& fetch) {
              FetchHeads(state_, layer_, stream::Saved::kK, shape_.active[k],
                         fetch);
              FetchHeads(state_, layer_, stream::Saved::kV, shape_.active[k],
                         fetch);
              return true;
            }),
      queries_(
          &state.blocks(), static_cast<int64_t>(blocks_.size()), "query chunk",
          [this](int64_t k, Fetch& fetch) { return FetchQuery(k, fetch); }) {}

// dq_j of the previous key chunk must have been sent before it is fetched.
bool AttentionBackward::FetchQuery(int64_t k, Fetch& fetch) {
  const auto [i, j] = blocks_[k];
  const bool has_gradient = !first(i);
  if (has_gradient && sent_[j] < shape_.previous(i)) return false;
  HostStore& store = state_.store;
  FetchHeads(state_, layer_, stream::Saved::kQ, j, fetch);
  fetch.Whole(store.saved(layer_, stream::Saved::kO, j));
  fetch.Whole(store.saved(layer_, stream::Saved::kLse, j));
  fetch.Whole(store.output_gradient(j));
  if (has_gradient) {
    fetch.Whole(store.query_gradient(j));
  } else {
    fetch.Field(shape_.query_gradient_bytes(j));
  }
  return true;
}

AttentionBackward::QueryItem AttentionBackward::Take(Slot& slot,
                                                     int64_t j) const {
  const std::array<int64_t, 3> sizes = {shape_.rows(j), shape_.q_heads,
                                        shape_.dim};
  const at::ScalarType type = state_.dtype;
  QueryItem item;
  item.q = slot.Take(sizes, type);
  item.output = slot.Take(sizes, at::kFloat);
  item.lse = slot.Take({shape_.q_heads, shape_.rows(j)}, at::kFloat);
  item.output_gradient = slot.Take(sizes, type);
  item.gradient = slot.Take(sizes, at::kFloat);
  return item;
}

void AttentionBackward::Compute(const Block& block, const at::Tensor& k,
                                const at::Tensor& v, QueryItem& item) {
  const auto [i, j] = block;
  const bool diagonal = i == j;
  SegmentScope segment(state_.options.allocator,
                       state_.Kind(diagonal ? "block.diagonal.backward"
                                            : "block.offdiagonal.backward",
                                   j));
  AttendBlockBackward({item.q, item.output_gradient, item.output, item.lse}, k,
                      v, diagonal, first(i) ? Sum::kBegin : Sum::kAdd,
                      diagonal ? Sum::kBegin : Sum::kAdd,
                      {item.gradient, state_.key_sum(i), state_.value_sum(i)});
  // No key chunk after the diagonal: dq_j is whole.
  if (diagonal) state_.query_sum(i).copy_(item.gradient);
}

absl::Status AttentionBackward::RunBlock(const Block& block,
                                         const at::Tensor& k,
                                         const at::Tensor& v) {
  const auto [i, j] = block;
  SLUICE_ASSIGN_OR_RETURN(Slot * slot, queries_.Next());
  QueryItem item = Take(*slot, j);
  Compute(block, k, v, item);
  if (i == j) {
    queries_.Done();
    return absl::OkStatus();
  }
  sent_[j] = i;
  queries_.Done(StagingRing::SendNow(state_.copies(), item.gradient,
                                     state_.store.query_gradient(j), "dq"));
  return absl::OkStatus();
}

absl::Status AttentionBackward::Run(
    const std::function<absl::Status(int64_t i)>& finished) {
  for (const int64_t i : shape_.active) {
    SLUICE_ASSIGN_OR_RETURN(Slot * slot, keys_.Next());
    const std::array<int64_t, 3> sizes = {shape_.rows(i), shape_.kv_heads,
                                          shape_.dim};
    const at::Tensor k = slot->Take(sizes, state_.dtype);
    const at::Tensor v = slot->Take(sizes, state_.dtype);
    while (next_ < blocks_.size() && blocks_[next_].i == i) {
      SLUICE_RETURN_IF_ERROR(RunBlock(blocks_[next_++], k, v));
    }
    keys_.Done();
    SLUICE_RETURN_IF_ERROR(finished(i));
  }
  return absl::OkStatus();
}

AttentionForward::AttentionForward(StreamState& state, int64_t layer)
    : state_(state),
      blocks_(ForwardBlocks(state.shape.active)),
      fetches_(&state.blocks(), static_cast<int64_t>(blocks_.size()), "k, v",
               [this, layer](int64_t n, Fetch& fetch) {
                 const int64_t i = blocks_[n].i;
                 if (i > sent_) return false;
                 FetchHeads(state_, layer, stream::Saved::kK, i, fetch);
                 FetchHeads(state_, layer, stream::Saved::kV, i, fetch);
                 return true;
               }) {}

absl::Status AttentionForward::Run(int64_t m, const Heads& heads,
                                   const at::Tensor& output) {
  const stream::StreamShape& shape = state_.shape;
  sent_ = m;
  fetches_.Pump();
  const RunningAttention running{output, heads.lse};
  {
    SegmentScope segment(state_.options.allocator,
                         state_.Kind("block.diagonal.forward", m));
    AttendBlock(heads.q, heads.k, heads.v, true, Sum::kBegin, running);
  }
  for (; next_ < blocks_.size() && blocks_[next_].j == m; ++next_) {
    SLUICE_ASSIGN_OR_RETURN(Slot * slot, fetches_.Next());
    const std::array<int64_t, 3> sizes = {shape.rows(blocks_[next_].i),
                                          shape.kv_heads, shape.dim};
    const at::Tensor k = slot->Take(sizes, state_.dtype);
    const at::Tensor v = slot->Take(sizes, state_.dtype);
    {
      SegmentScope segment(state_.options.allocator,
                           state_.Kind("block.offdiagonal.forward", m));
      AttendBlock(heads.q, k, v, false, Sum::kAdd, running);
    }
    fetches_.Done();
  }
  return absl::OkStatus();
}

}  // namespace sluice::runtime
