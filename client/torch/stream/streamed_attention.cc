// FPDT's pipeline: blocks of chunked attention with k/v (forward) or queries
// (backward) streamed from host memory.
#include <array>

#include "client/torch/math/attention_blocks.h"
#include "client/torch/stream/stream_context.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

// Forward makes a diagonal block from what it just projected; the others come
// from host memory.
std::vector<stream::Block> FetchedBlocks(std::vector<stream::Block> blocks) {
  std::erase_if(blocks, [](const stream::Block& block) {
    return block.mask() == stream::Mask::kCausal;
  });
  return blocks;
}

}  // namespace

AttentionBackward::AttentionBackward(StreamState& state, int64_t layer)
    : state_(state),
      shape_(state.shape),
      layer_(layer),
      blocks_(stream::BackwardBlocks(state.active)),
      sent_(state.shape.chunks(), -1),
      keys_(&state.keys(), static_cast<int64_t>(state_.active.size()), "k, v",
            [this](int64_t k, Fetch& fetch) {
              FetchHeads(state_, layer_, stream::Class::kK, state_.active[k],
                         fetch);
              FetchHeads(state_, layer_, stream::Class::kV, state_.active[k],
                         fetch);
              return true;
            }),
      queries_(&state.blocks(), static_cast<int64_t>(blocks_.size()),
               "query chunk",
               [this](int64_t k, Fetch& fetch) {
                 FetchQuery(k, fetch);
                 return true;
               }),
      gradients_(
          &state.gradients(), static_cast<int64_t>(blocks_.size()), "dq",
          [this](int64_t k, Fetch& fetch) { return FetchGradient(k, fetch); }) {
}

void AttentionBackward::FetchQuery(int64_t k, Fetch& fetch) {
  const int64_t j = blocks_[k].j;
  ChunkStore& store = state_.store;
  FetchHeads(state_, layer_, stream::Class::kQ, j, fetch);
  fetch.Whole(store.saved(layer_, stream::Class::kO, j));
  fetch.Whole(store.saved(layer_, stream::Class::kLse, j));
  fetch.Whole(store.output_gradient(j));
}

// dq_j of the previous key chunk must have been sent before it is fetched.
bool AttentionBackward::FetchGradient(int64_t k, Fetch& fetch) {
  const auto [i, j] = blocks_[k];
  if (first(i)) {
    fetch.Space(state_.store.query_gradient(j));
    return true;
  }
  if (sent_[j] < state_.previous(i)) return false;
  fetch.Whole(state_.store.query_gradient(j));
  return true;
}

QueryRows AttentionBackward::Take(Slot& slot, int64_t j) const {
  const std::array<int64_t, 3> sizes = {shape_.rows(j), shape_.q_heads,
                                        shape_.dim};
  const at::ScalarType type = state_.dtype;
  QueryRows queries;
  queries.q = slot.Take(sizes, type);
  queries.output = slot.Take(sizes, at::kFloat);
  queries.lse = slot.Take({shape_.q_heads, shape_.rows(j)}, at::kFloat);
  queries.output_gradient = slot.Take(sizes, type);
  return queries;
}

void AttentionBackward::Compute(const stream::Block& block, const at::Tensor& k,
                                const at::Tensor& v, const QueryRows& queries,
                                const at::Tensor& gradient) {
  const auto [i, j] = block;
  const bool diagonal = i == j;
  SegmentScope segment(
      state_.options.allocator,
      state_.Kind(diagonal ? stream::Segment::kDiagonalBackward
                           : stream::Segment::kOffdiagonalBackward,
                  j));
  AttendBlockBackward(queries, k, v, diagonal,
                      first(i) ? Sum::kBegin : Sum::kAdd,
                      diagonal ? Sum::kBegin : Sum::kAdd,
                      {gradient, state_.key_sum(i), state_.value_sum(i)});
  // No key chunk after the diagonal: dq_j is whole.
  if (diagonal && !shape_.resident(stream::Class::kQueryGradient)) {
    state_.query_sum(i).copy_(gradient);
  }
}

absl::Status AttentionBackward::RunBlock(const stream::Block& block,
                                         const at::Tensor& k,
                                         const at::Tensor& v) {
  const auto [i, j] = block;
  SLUICE_ASSIGN_OR_RETURN(Slot * slot, queries_.Next());
  SLUICE_ASSIGN_OR_RETURN(Slot * gradient_slot, gradients_.Next());
  const at::Tensor gradient = gradient_slot->Take(
      {shape_.rows(j), shape_.q_heads, shape_.dim}, at::kFloat);
  Compute(block, k, v, Take(*slot, j), gradient);
  queries_.Done();
  if (i == j) {
    gradients_.Done();
    return absl::OkStatus();
  }
  sent_[j] = i;
  gradients_.Done(StagingRing::SendNow(state_.copies(), gradient,
                                       state_.store.query_gradient(j), "dq"));
  return absl::OkStatus();
}

absl::Status AttentionBackward::Run(
    const std::function<absl::Status(int64_t i)>& finished) {
  for (const int64_t i : state_.active) {
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
      blocks_(FetchedBlocks(stream::ForwardBlocks(state.active))),
      fetches_(&state.blocks(), static_cast<int64_t>(blocks_.size()), "k, v",
               [this, layer](int64_t n, Fetch& fetch) {
                 const int64_t i = blocks_[n].i;
                 if (i > sent_) return false;
                 FetchHeads(state_, layer, stream::Class::kK, i, fetch);
                 FetchHeads(state_, layer, stream::Class::kV, i, fetch);
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
                         state_.Kind(stream::Segment::kDiagonalForward, m));
    AttendBlock(heads.q, heads.k, heads.v, true, Sum::kBegin, running);
  }
  for (; next_ < blocks_.size() && blocks_[next_].j == m; ++next_) {
    SLUICE_ASSIGN_OR_RETURN(Slot * slot, fetches_.Next());
    const std::array<int64_t, 3> sizes = {shape.rows(blocks_[next_].i),
                                          shape.kv_heads, shape.dim};
    const at::Tensor k = slot->Take(sizes, state_.dtype);
    const at::Tensor v = slot->Take(sizes, state_.dtype);
    {
      SegmentScope segment(
          state_.options.allocator,
          state_.Kind(stream::Segment::kOffdiagonalForward, m));
      AttendBlock(heads.q, k, v, false, Sum::kAdd, running);
    }
    fetches_.Done();
  }
  return absl::OkStatus();
}

}  // namespace sluice::runtime
