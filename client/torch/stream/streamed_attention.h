// FPDT's pipeline: blocks of chunked attention with k, v (forward) or one side
// of the blocks (backward) streamed from host memory.
//
// Thread safety: the compute thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <vector>

#include "client/torch/math/attention_blocks.h"
#include "client/torch/stream/stream_state.h"
#include "proto/base/status.h"

namespace sluice::runtime {

// A chunk in head layout: q, k, v [rows, heads, dim], o as q, lse [heads,
// rows]. q, o and lse have the rows of this rank's part.
struct Heads : HeadTensors {
  at::Tensor o, lse;
};

struct Keys {
  at::Tensor k, v;
};
inline void FetchKeys(StreamState& state, int64_t layer, int64_t m,
                      Fetch& fetch) {
  FetchHeads(state, layer, stream::Class::kK, m, fetch);
  FetchHeads(state, layer, stream::Class::kV, m, fetch);
}
inline Keys TakeKeys(const StreamState& state, Slot& slot, int64_t m) {
  const std::array<int64_t, 3> sizes = {state.shape.rows(m),
                                        state.shape.kv_heads, state.shape.dim};
  return {slot.Take(sizes, state.dtype), slot.Take(sizes, state.dtype)};
}
// Returns the number of keys of chunk m up to this rank's last query.
inline int64_t KeysSeen(const stream::StreamShape& shape, int64_t m) {
  return shape.first_query(m) + shape.queries(m);
}

// Runs one layer's attention chunk by chunk. Keys and values of earlier chunks
// are fetched ahead of their use, even across chunks. Diagonal blocks use the
// keys and values just projected.
class AttentionForward {
 public:
  // `chunks` are the chunks to run, in order; blocks pair only these.
  AttentionForward(StreamState& state, int64_t layer,
                   const std::vector<int64_t>& chunks)
      : state_(state),
        blocks_(FetchedBlocks(stream::ForwardBlocks(chunks))),
        fetches_(&state.blocks(), std::ssize(blocks_), "k, v",
                 [this, layer](int64_t n, Fetch& fetch) {
                   if (blocks_[n].i > sent_) return false;
                   FetchKeys(state_, layer, blocks_[n].i, fetch);
                   return true;
                 }) {}

  // Attends chunk m to `chunks` up to m; fills `output` (fp32) and heads.lse.
  // REQUIRES: m's k and v have been sent (flushed).
  absl::Status Run(int64_t m, const Heads& heads, const at::Tensor& output) {
    sent_ = m;
    fetches_.Pump();
    const RunningAttention running{output, heads.lse};
    {
      const auto segment = state_.Segment(stream::Segment::kDiagonalForward, m);
      const int64_t seen = KeysSeen(state_.shape, m);
      AttendBlock(heads.q, heads.k.narrow(0, 0, seen),
                  heads.v.narrow(0, 0, seen), true, Sum::kBegin, running);
    }
    for (; next_ < blocks_.size() && blocks_[next_].j == m; ++next_) {
      SLUICE_ASSIGN_OR_RETURN(Slot * slot, fetches_.Next());
      const Keys keys = TakeKeys(state_, *slot, blocks_[next_].i);
      {
        const auto segment =
            state_.Segment(stream::Segment::kOffdiagonalForward, m);
        AttendBlock(heads.q, keys.k, keys.v, false, Sum::kAdd, running);
      }
      fetches_.Done();
    }
    return absl::OkStatus();
  }

 private:
  static std::vector<stream::Block> FetchedBlocks(
      std::vector<stream::Block> blocks) {
    std::erase_if(blocks, [](const stream::Block& block) {
      return block.mask() == stream::Mask::kCausal;
    });
    return blocks;
  }

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
  AttentionBackward(StreamState& state, int64_t layer)
      : state_(state),
        shape_(state.shape),
        layer_(layer),
        keys_outer_(shape_.order == stream::BackwardOrder::kKeysOuter),
        outer_(stream::OuterChunks(state.active, shape_.order)),
        blocks_(stream::BackwardBlocks(state.active, shape_.order)),
        summed_(keys_outer_ ? std::vector{stream::Class::kQueryGradient}
                            : std::vector{stream::Class::kKeyGradient,
                                          stream::Class::kValueGradient}),
        sent_(shape_.chunks(), -1),
        outer_fetches_(&state.outer(), std::ssize(outer_), "outer chunk",
                       [this](int64_t k, Fetch& fetch) {
                         return FetchSide(keys_outer_, outer_[k], fetch);
                       }),
        inner_fetches_(&state.blocks(), std::ssize(blocks_), "inner chunk",
                       [this](int64_t k, Fetch& fetch) {
                         return FetchSide(!keys_outer_, InnerOf(blocks_[k]),
                                          fetch);
                       }),
        gradients_(&state.gradients(), std::ssize(blocks_),
                   "gradients of inner chunk", [this](int64_t k, Fetch& fetch) {
                     return FetchGradients(blocks_[k], fetch);
                   }) {}

  // Issues the fetches that could not be issued before the phase began.
  void Pump() {
    outer_fetches_.Pump();
    inner_fetches_.Pump();
    gradients_.Pump();
  }

  // Calls `finished` for each outer chunk once its gradients are complete, in
  // state.sum.
  absl::Status Run(const std::function<absl::Status(int64_t m)>& finished) {
    Keys keys;
    QueryRows queries;
    const auto take = [&](Slot& slot, bool of_keys, int64_t m) {
      if (of_keys) {
        keys = TakeKeys(state_, slot, m);
      } else {
        queries = TakeQueries(slot, m);
      }
    };
    for (const int64_t m : outer_) {
      SLUICE_ASSIGN_OR_RETURN(Slot * outer, outer_fetches_.Next());
      take(*outer, keys_outer_, m);
      for (; next_ < blocks_.size() && OuterOf(blocks_[next_]) == m; ++next_) {
        SLUICE_ASSIGN_OR_RETURN(Slot * inner, inner_fetches_.Next());
        take(*inner, !keys_outer_, InnerOf(blocks_[next_]));
        SLUICE_RETURN_IF_ERROR(RunBlock(blocks_[next_], keys, queries));
      }
      outer_fetches_.Done(computed_);
      SLUICE_RETURN_IF_ERROR(finished(m));
    }
    return absl::OkStatus();
  }

 private:
  // The inner side's gradients: dq, or dk and dv.
  using Gradients = std::vector<at::Tensor>;

  int64_t OuterOf(const stream::Block& block) const {
    return keys_outer_ ? block.i : block.j;
  }
  int64_t InnerOf(const stream::Block& block) const {
    return keys_outer_ ? block.j : block.i;
  }

  // Returns false if chunk m is still being computed.
  bool FetchSide(bool of_keys, int64_t m, Fetch& fetch) {
    if (m == state_.unsent()) return false;
    if (of_keys) {
      FetchKeys(state_, layer_, m, fetch);
      return true;
    }
    FetchHeads(state_, layer_, stream::Class::kQ, m, fetch);
    fetch.Whole(state_.store.saved(layer_, stream::Class::kO, m));
    fetch.Whole(state_.store.saved(layer_, stream::Class::kLse, m));
    fetch.Whole(state_.store.scratch(stream::Class::kOutputGradient, m));
    return true;
  }

  // Returns false until the sums after the previous outer chunk were sent.
  bool FetchGradients(const stream::Block& block, Fetch& fetch) {
    const int64_t outer = OuterOf(block), inner = InnerOf(block);
    const bool first = outer == outer_.front();
    if (!first &&
        sent_[inner] != *std::prev(std::ranges::find(outer_, outer))) {
      return false;
    }
    for (const stream::Class which : summed_) {
      ChunkBuffer& sums = state_.store.scratch(which, inner);
      first ? fetch.Space(sums) : fetch.Whole(sums);
    }
    return true;
  }

  QueryRows TakeQueries(Slot& slot, int64_t m) const {
    const std::array<int64_t, 3> sizes = {shape_.queries(m), shape_.q_heads,
                                          shape_.dim};
    QueryRows queries;
    queries.q = slot.Take(sizes, state_.dtype);
    queries.output = slot.Take(sizes, state_.output_type());
    queries.lse = slot.Take({shape_.q_heads, shape_.queries(m)}, at::kFloat);
    queries.output_gradient = slot.Take(sizes, state_.dtype);
    return queries;
  }

  absl::Status RunBlock(const stream::Block& block, const Keys& keys,
                        const QueryRows& queries) {
    const int64_t inner = InnerOf(block);
    SLUICE_ASSIGN_OR_RETURN(Slot * slot, gradients_.Next());
    Gradients gradients;
    for (const stream::Class which : summed_) {
      gradients.push_back(slot->Take(
          {shape_.class_rows(which, inner),
           keys_outer_ ? shape_.q_heads : shape_.kv_heads, shape_.dim},
          at::kFloat));
    }
    Compute(block, keys, queries, gradients);
    computed_ = state_.copies().MarkCompute();
    inner_fetches_.Done(computed_);
    if (block.mask() == stream::Mask::kCausal) {
      gradients_.Done(computed_);
      return absl::OkStatus();
    }
    sent_[inner] = OuterOf(block);
    // Copies out run in order, so the last one's ticket covers the others.
    client::Ticket last_use = computed_;
    for (size_t i = 0; i < gradients.size(); ++i) {
      ChunkBuffer& to = state_.store.scratch(summed_[i], inner);
      if (to.resident || to.size == 0) continue;
      last_use = StagingRing::SendNow(state_.copies(), gradients[i], to,
                                      computed_, "gradients of inner chunk");
    }
    gradients_.Done(last_use);
    return absl::OkStatus();
  }

  // Computes a block's gradients. Sums of an inner chunk begin with the first
  // outer chunk, those of an outer chunk with the diagonal block.
  void Compute(const stream::Block& block, const Keys& keys,
               const QueryRows& queries, const Gradients& inner) {
    using enum stream::Segment;
    const auto [i, j] = block;
    const bool diagonal = block.mask() == stream::Mask::kCausal;
    const auto segment =
        state_.Segment(diagonal ? kDiagonalBackward : kOffdiagonalBackward, j);
    const Sum inner_sum =
        OuterOf(block) == outer_.front() ? Sum::kBegin : Sum::kAdd;
    const Sum outer_sum = diagonal ? Sum::kBegin : Sum::kAdd;
    const GradientSums sums =
        keys_outer_
            ? GradientSums{inner[0], state_.sum(stream::Class::kKeyGradient, i),
                           state_.sum(stream::Class::kValueGradient, i)}
            : GradientSums{state_.sum(stream::Class::kQueryGradient, j),
                           inner[0], inner[1]};
    const Sum query_sum = keys_outer_ ? inner_sum : outer_sum;
    const Sum key_sum = keys_outer_ ? outer_sum : inner_sum;
    const int64_t all = shape_.rows(i);
    const int64_t seen = diagonal ? KeysSeen(shape_, i) : all;
    if (key_sum == Sum::kBegin) {
      sums.k.narrow(0, seen, all - seen).zero_();
      sums.v.narrow(0, seen, all - seen).zero_();
    }
    const auto first = [&](const at::Tensor& t) {
      return t.narrow(0, 0, seen);
    };
    AttendBlockBackward(queries, first(keys.k), first(keys.v), diagonal,
                        query_sum, key_sum,
                        {sums.q, first(sums.k), first(sums.v)});
    if (!diagonal) return;
    // The inner side's gradients are complete after the diagonal block.
    for (size_t s = 0; s < inner.size(); ++s) {
      if (shape_.resident(summed_[s])) continue;
      state_.sum(summed_[s], i).copy_(inner[s]);
    }
  }

  StreamState& state_;
  const stream::StreamShape& shape_;
  const int64_t layer_;
  const bool keys_outer_;
  const std::vector<int64_t> outer_;
  const std::vector<stream::Block> blocks_;
  const std::vector<stream::Class> summed_;  // of the inner side
  size_t next_ = 0;                          // of blocks_
  client::Ticket computed_;                  // marks the last block
  // For each inner chunk, the last outer chunk after which its sums were sent.
  std::vector<int64_t> sent_;
  Fetches outer_fetches_, inner_fetches_;
  // Gradients have their own ring: a slot of theirs is in use until they are
  // back in host memory, and the next inner chunk need not wait for that.
  Fetches gradients_;
};

}  // namespace sluice::runtime
