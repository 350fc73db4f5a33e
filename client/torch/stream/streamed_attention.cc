// FPDT's pipeline: blocks of chunked attention with k/v (forward) or queries
// (backward) streamed from host memory.
#include <algorithm>
#include <array>
#include <iterator>

#include "client/torch/math/attention_blocks.h"
#include "client/torch/stream/stream_state.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

constexpr int64_t kNone = -1;

// Forward computes diagonal blocks from the keys and values that it just
// projected; those of other blocks come from host memory.
std::vector<stream::Block> FetchedBlocks(std::vector<stream::Block> blocks) {
  std::erase_if(blocks, [](const stream::Block& block) {
    return block.mask() == stream::Mask::kCausal;
  });
  return blocks;
}

// Returns the number of keys of chunk m up to this rank's last query.
int64_t KeysSeen(const stream::StreamShape& shape, int64_t m) {
  return shape.first_query(m) + shape.queries(m);
}

}  // namespace

AttentionBackward::AttentionBackward(StreamState& state, int64_t layer)
    : state_(state),
      shape_(state.shape),
      layer_(layer),
      keys_outer_(shape_.order == stream::BackwardOrder::kKeysOuter),
      outer_(stream::OuterChunks(state.active, shape_.order)),
      blocks_(stream::BackwardBlocks(state.active, shape_.order)),
      summed_(keys_outer_ ? std::vector{stream::Class::kQueryGradient}
                          : std::vector{stream::Class::kKeyGradient,
                                        stream::Class::kValueGradient}),
      sent_(state.shape.chunks(), kNone),
      outer_fetches_(&state.outer(), static_cast<int64_t>(outer_.size()),
                     "outer chunk",
                     [this](int64_t k, Fetch& fetch) {
                       if (outer_[k] == state_.unsent()) return false;
                       keys_outer_ ? FetchKeys(outer_[k], fetch)
                                   : FetchQueries(outer_[k], fetch);
                       return true;
                     }),
      inner_fetches_(
          &state.blocks(), static_cast<int64_t>(blocks_.size()), "inner chunk",
          [this](int64_t k, Fetch& fetch) {
            const int64_t m = InnerOf(blocks_[k]);
            if (m == state_.unsent()) return false;
            keys_outer_ ? FetchQueries(m, fetch) : FetchKeys(m, fetch);
            return true;
          }),
      gradients_(&state.gradients(), static_cast<int64_t>(blocks_.size()),
                 "gradients of inner chunk", [this](int64_t k, Fetch& fetch) {
                   return FetchGradients(blocks_[k], fetch);
                 }) {}

void AttentionBackward::Pump() {
  outer_fetches_.Pump();
  inner_fetches_.Pump();
  gradients_.Pump();
}

void AttentionBackward::FetchKeys(int64_t i, Fetch& fetch) {
  FetchHeads(state_, layer_, stream::Class::kK, i, fetch);
  FetchHeads(state_, layer_, stream::Class::kV, i, fetch);
}

void AttentionBackward::FetchQueries(int64_t j, Fetch& fetch) {
  ChunkStore& store = state_.store;
  FetchHeads(state_, layer_, stream::Class::kQ, j, fetch);
  fetch.Whole(store.saved(layer_, stream::Class::kO, j));
  fetch.Whole(store.saved(layer_, stream::Class::kLse, j));
  fetch.Whole(store.scratch(stream::Class::kOutputGradient, j));
}

// Returns false until the sums after the former outer chunk have been sent.
bool AttentionBackward::FetchGradients(const stream::Block& block,
                                       Fetch& fetch) {
  const int64_t outer = OuterOf(block), inner = InnerOf(block);
  const bool first = outer == outer_.front();
  if (!first && sent_[inner] != *std::prev(std::ranges::find(outer_, outer))) {
    return false;
  }
  for (const stream::Class which : summed_) {
    ChunkBuffer& sums = state_.store.scratch(which, inner);
    first ? fetch.Space(sums) : fetch.Whole(sums);
  }
  return true;
}

AttentionBackward::Keys AttentionBackward::TakeKeys(Slot& slot,
                                                    int64_t i) const {
  const std::array<int64_t, 3> sizes = {shape_.rows(i), shape_.kv_heads,
                                        shape_.dim};
  Keys keys;
  keys.k = slot.Take(sizes, state_.dtype);
  keys.v = slot.Take(sizes, state_.dtype);
  return keys;
}

QueryRows AttentionBackward::TakeQueries(Slot& slot, int64_t j) const {
  const std::array<int64_t, 3> sizes = {shape_.queries(j), shape_.q_heads,
                                        shape_.dim};
  QueryRows queries;
  queries.q = slot.Take(sizes, state_.dtype);
  queries.output = slot.Take(sizes, state_.output_type());
  queries.lse = slot.Take({shape_.q_heads, shape_.queries(j)}, at::kFloat);
  queries.output_gradient = slot.Take(sizes, state_.dtype);
  return queries;
}

AttentionBackward::Gradients AttentionBackward::TakeGradients(Slot& slot,
                                                              int64_t m) const {
  Gradients gradients;
  for (size_t i = 0; i < summed_.size(); ++i) {
    gradients.push_back(
        slot.Take({shape_.class_rows(summed_[i], m),
                   keys_outer_ ? shape_.q_heads : shape_.kv_heads, shape_.dim},
                  at::kFloat));
  }
  return gradients;
}

// Computes a block's gradients. The first outer chunk begins an inner chunk's
// gradients; the diagonal block begins an outer chunk's.
void AttentionBackward::Compute(const stream::Block& block, const Keys& keys,
                                const QueryRows& queries,
                                const Gradients& inner) {
  const auto [i, j] = block;
  const bool diagonal = block.mask() == stream::Mask::kCausal;
  SegmentScope segment(
      state_.options.allocator,
      state_.Kind(diagonal ? stream::Segment::kDiagonalBackward
                           : stream::Segment::kOffdiagonalBackward,
                  j));
  const Sum inner_sum =
      OuterOf(block) == outer_.front() ? Sum::kBegin : Sum::kAdd;
  const Sum outer_sum = diagonal ? Sum::kBegin : Sum::kAdd;
  const GradientSums sums =
      keys_outer_
          ? GradientSums{inner[0], state_.key_sum(i), state_.value_sum(i)}
          : GradientSums{state_.query_sum(j), inner[0], inner[1]};
  const Sum query_sum = keys_outer_ ? inner_sum : outer_sum;
  const Sum key_sum = keys_outer_ ? outer_sum : inner_sum;
  const int64_t all = shape_.rows(i);
  const int64_t seen = diagonal ? KeysSeen(shape_, i) : all;
  if (key_sum == Sum::kBegin) {
    sums.k.narrow(0, seen, all - seen).zero_();
    sums.v.narrow(0, seen, all - seen).zero_();
  }
  const auto first = [&](const at::Tensor& t) { return t.narrow(0, 0, seen); };
  AttendBlockBackward(queries, first(keys.k), first(keys.v), diagonal,
                      query_sum, key_sum,
                      {sums.q, first(sums.k), first(sums.v)});
  if (diagonal) Whole(i, inner);
}

// Copies the inner side's gradients, complete after the diagonal, to the sums.
void AttentionBackward::Whole(int64_t m, const Gradients& inner) {
  const Gradients to = keys_outer_
                           ? Gradients{state_.query_sum(m)}
                           : Gradients{state_.key_sum(m), state_.value_sum(m)};
  for (size_t i = 0; i < inner.size(); ++i) {
    if (!shape_.resident(summed_[i])) to[i].copy_(inner[i]);
  }
}

absl::Status AttentionBackward::RunBlock(const stream::Block& block,
                                         const Keys& keys,
                                         const QueryRows& queries) {
  const int64_t inner = InnerOf(block);
  SLUICE_ASSIGN_OR_RETURN(Slot * slot, gradients_.Next());
  const Gradients gradients = TakeGradients(*slot, inner);
  Compute(block, keys, queries, gradients);
  inner_fetches_.Done();
  if (block.mask() == stream::Mask::kCausal) {
    gradients_.Done();
    return absl::OkStatus();
  }
  sent_[inner] = OuterOf(block);
  // Copies out run in order, so the last one's ticket covers the others.
  client::Ticket last_use = state_.copies().MarkCompute();
  for (size_t i = 0; i < gradients.size(); ++i) {
    ChunkBuffer& to = state_.store.scratch(summed_[i], inner);
    if (to.resident || to.size == 0) continue;
    last_use = StagingRing::SendNow(state_.copies(), gradients[i], to,
                                    "gradients of inner chunk");
  }
  gradients_.Done(last_use);
  return absl::OkStatus();
}

absl::Status AttentionBackward::Run(
    const std::function<absl::Status(int64_t m)>& finished) {
  for (const int64_t m : outer_) {
    SLUICE_ASSIGN_OR_RETURN(Slot * outer, outer_fetches_.Next());
    Keys keys;
    QueryRows queries;
    if (keys_outer_) {
      keys = TakeKeys(*outer, m);
    } else {
      queries = TakeQueries(*outer, m);
    }
    for (; next_ < blocks_.size() && OuterOf(blocks_[next_]) == m; ++next_) {
      const stream::Block& block = blocks_[next_];
      SLUICE_ASSIGN_OR_RETURN(Slot * inner, inner_fetches_.Next());
      if (keys_outer_) {
        queries = TakeQueries(*inner, block.j);
      } else {
        keys = TakeKeys(*inner, block.i);
      }
      SLUICE_RETURN_IF_ERROR(RunBlock(block, keys, queries));
    }
    outer_fetches_.Done();
    SLUICE_RETURN_IF_ERROR(finished(m));
  }
  return absl::OkStatus();
}

AttentionForward::AttentionForward(StreamState& state, int64_t layer,
                                   const std::vector<int64_t>& chunks)
    : state_(state),
      blocks_(FetchedBlocks(stream::ForwardBlocks(chunks))),
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
    const int64_t seen = KeysSeen(shape, m);
    AttendBlock(heads.q, heads.k.narrow(0, 0, seen), heads.v.narrow(0, 0, seen),
                true, Sum::kBegin, running);
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
