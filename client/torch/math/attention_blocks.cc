#include "client/torch/math/attention_blocks.h"

#include "client/torch/math/token_calls.h"

namespace sluice::runtime {
namespace {

int64_t FirstHalf(int64_t rows, int64_t tile_rows) {
  const int64_t half = (rows + 1) / 2;
  return (half + tile_rows - 1) / tile_rows * tile_rows;
}

// A part of a block that the device computes in one call.
struct Piece {
  int64_t first_query, queries, first_key, keys;
  bool causal;
  Sum query_sum, key_sum;

  at::Tensor Queries(const at::Tensor& t) const {
    return t.narrow(0, first_query, queries);
  }
  at::Tensor Lse(const at::Tensor& t) const {
    return t.narrow(1, first_query, queries);
  }
  at::Tensor Keys(const at::Tensor& t) const {
    return t.narrow(0, first_key, keys);
  }
};

// Cuts a block into pieces and calls `compute` for each, in order.
void ForPieces(const Backend::Traits& traits, const Piece& block,
               const auto& compute) {
  const auto [q, queries, k, keys, causal, query_sum, key_sum] = block;
  const int64_t before = causal ? keys - queries : 0;
  if (before > 0) {
    ForPieces(traits, {q, queries, k, before, false, query_sum, key_sum},
              compute);
    return ForPieces(
        traits, {q, queries, k + before, queries, true, Sum::kAdd, key_sum},
        compute);
  }
  if (!causal || traits.causal_rows == 0 || queries <= traits.causal_rows) {
    return compute(block);
  }
  const int64_t half = FirstHalf(queries, traits.tile_rows);
  const int64_t rest = queries - half;
  ForPieces(traits, {q, half, k, half, true, query_sum, key_sum}, compute);
  ForPieces(traits, {q + half, rest, k, half, false, query_sum, Sum::kAdd},
            compute);
  ForPieces(traits, {q + half, rest, k + half, rest, true, Sum::kAdd, key_sum},
            compute);
}

// Returns `t` in the dtype in which the device computes blocks.
at::Tensor Typed(const Backend& backend, const at::Tensor& t) {
  return backend.traits().blocks_in_fp32 ? t.to(at::kFloat) : t;
}

void Accumulate(Sum sum, const at::Tensor& to, const at::Tensor& part) {
  sum == Sum::kBegin ? to.copy_(part) : to.add_(part);
}

}  // namespace

void AttendBlock(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 bool causal, Sum sum, const RunningAttention& running) {
  if (q.size(0) == 0) return;
  const ObservedCall observed("sluice::attention_block", {q, k, v},
                              {running.output, running.lse});
  const Backend& backend = BackendOf(q);
  const at::Tensor typed_q = Typed(backend, q), typed_k = Typed(backend, k),
                   typed_v = Typed(backend, v);
  ForPieces(backend.traits(), {0, q.size(0), 0, k.size(0), causal, sum, sum},
            [&](const Piece& p) {
              const RunningAttention part = {p.Queries(running.output),
                                             p.Lse(running.lse)};
              const AttentionResult block =
                  backend.Attend(p.Queries(typed_q), p.Keys(typed_k),
                                 p.Keys(typed_v), p.causal);
              if (p.query_sum == Sum::kAdd) return backend.Merge(part, block);
              part.output.copy_(block.output);
              part.lse.copy_(block.lse);
            });
}

void AttendBlockBackward(const QueryRows& queries, const at::Tensor& k,
                         const at::Tensor& v, bool causal, Sum query_sum,
                         Sum key_sum, const GradientSums& sums) {
  if (queries.q.size(0) == 0) {
    if (key_sum == Sum::kAdd) return;
    sums.k.zero_();
    sums.v.zero_();
    return;
  }
  const ObservedCall observed(
      "sluice::attention_block_backward",
      {queries.q, queries.output_gradient, queries.output, queries.lse, k, v},
      {sums.q, sums.k, sums.v});
  const Backend& backend = BackendOf(queries.q);
  const QueryRows rows = {Typed(backend, queries.q),
                          Typed(backend, queries.output_gradient),
                          Typed(backend, queries.output), queries.lse};
  const at::Tensor typed_k = Typed(backend, k), typed_v = Typed(backend, v);
  ForPieces(backend.traits(),
            {0, rows.q.size(0), 0, k.size(0), causal, query_sum, key_sum},
            [&](const Piece& p) {
              const AttentionGradients block = backend.AttendBackward(
                  {p.Queries(rows.q), p.Queries(rows.output_gradient),
                   p.Queries(rows.output), p.Lse(rows.lse)},
                  p.Keys(typed_k), p.Keys(typed_v), p.causal);
              Accumulate(p.query_sum, p.Queries(sums.q), block.q);
              Accumulate(p.key_sum, p.Keys(sums.k), block.k);
              Accumulate(p.key_sum, p.Keys(sums.v), block.v);
            });
}

}  // namespace sluice::runtime
