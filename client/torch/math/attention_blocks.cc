#include "client/torch/math/attention_blocks.h"

#include "client/torch/math/token_calls.h"

namespace sluice::runtime {
namespace {

int64_t FirstHalf(int64_t rows, int64_t tile_rows) {
  const int64_t half = (rows + 1) / 2;
  return (half + tile_rows - 1) / tile_rows * tile_rows;
}

RunningAttention Rows(const RunningAttention& t, int64_t first, int64_t rows) {
  return {t.output.narrow(0, first, rows), t.lse.narrow(1, first, rows)};
}
QueryRows Rows(const QueryRows& t, int64_t first, int64_t rows) {
  return {t.q.narrow(0, first, rows), t.output_gradient.narrow(0, first, rows),
          t.output.narrow(0, first, rows), t.lse.narrow(1, first, rows)};
}
GradientSums Rows(const GradientSums& t, int64_t first_query, int64_t queries,
                  int64_t first_key, int64_t keys) {
  return {t.q.narrow(0, first_query, queries), t.k.narrow(0, first_key, keys),
          t.v.narrow(0, first_key, keys)};
}

void Accumulate(Sum sum, const at::Tensor& to, const at::Tensor& part) {
  sum == Sum::kBegin ? to.copy_(part) : to.add_(part);
}

// Computes blocks on one device, in the dtype that the device computes them in.
class Blocks {
 public:
  explicit Blocks(const Backend& backend) : backend_(backend) {}

  at::Tensor Typed(const at::Tensor& t) const {
    return backend_.traits().blocks_in_fp32 ? t.to(at::kFloat) : t;
  }
  void Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
              bool causal, Sum sum, const RunningAttention& running) const {
    const int64_t rows = q.size(0);
    const int64_t before = causal ? k.size(0) - rows : 0;
    if (before > 0) {
      Attend(q, k.narrow(0, 0, before), v.narrow(0, 0, before), false, sum,
             running);
      return Attend(q, k.narrow(0, before, rows), v.narrow(0, before, rows),
                    true, Sum::kAdd, running);
    }
    if (Whole(causal, rows)) {
      const AttentionResult block = backend_.Attend(q, k, v, causal);
      if (sum == Sum::kAdd) return backend_.Merge(running, block);
      running.output.copy_(block.output);
      running.lse.copy_(block.lse);
      return;
    }
    const int64_t half = FirstHalf(rows, backend_.traits().tile_rows),
                  rest = rows - half;
    const auto first = [&](const at::Tensor& t) {
      return t.narrow(0, 0, half);
    };
    const auto last = [&](const at::Tensor& t) {
      return t.narrow(0, half, rest);
    };
    const RunningAttention below = Rows(running, half, rest);
    Attend(first(q), first(k), first(v), true, sum, Rows(running, 0, half));
    Attend(last(q), first(k), first(v), false, sum, below);
    Attend(last(q), last(k), last(v), true, Sum::kAdd, below);
  }

  void Backward(const QueryRows& queries, const at::Tensor& k,
                const at::Tensor& v, bool causal, Sum query_sum, Sum key_sum,
                const GradientSums& sums) const {
    const int64_t rows = queries.q.size(0);
    const int64_t before = causal ? k.size(0) - rows : 0;
    if (before > 0) {
      Backward(queries, k.narrow(0, 0, before), v.narrow(0, 0, before), false,
               query_sum, key_sum, Rows(sums, 0, rows, 0, before));
      return Backward(queries, k.narrow(0, before, rows),
                      v.narrow(0, before, rows), true, Sum::kAdd, key_sum,
                      Rows(sums, 0, rows, before, rows));
    }
    if (Whole(causal, rows)) {
      const AttentionGradients block =
          backend_.AttendBackward(queries, k, v, causal);
      Accumulate(query_sum, sums.q, block.q);
      Accumulate(key_sum, sums.k, block.k);
      Accumulate(key_sum, sums.v, block.v);
      return;
    }
    const int64_t half = FirstHalf(rows, backend_.traits().tile_rows),
                  rest = rows - half;
    const at::Tensor first_k = k.narrow(0, 0, half);
    const at::Tensor first_v = v.narrow(0, 0, half);
    const QueryRows below = Rows(queries, half, rest);
    Backward(Rows(queries, 0, half), first_k, first_v, true, query_sum, key_sum,
             Rows(sums, 0, half, 0, half));
    Backward(below, first_k, first_v, false, query_sum, Sum::kAdd,
             Rows(sums, half, rest, 0, half));
    Backward(below, k.narrow(0, half, rest), v.narrow(0, half, rest), true,
             Sum::kAdd, key_sum, Rows(sums, half, rest, half, rest));
  }

 private:
  bool Whole(bool causal, int64_t rows) const {
    const int64_t largest = backend_.traits().causal_rows;
    return !causal || largest == 0 || rows <= largest;
  }

  const Backend& backend_;
};
}  // namespace

void AttendBlock(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 bool causal, Sum sum, const RunningAttention& running) {
  if (q.size(0) == 0) return;
  const ObservedCall observed("sluice::attention_block", {q, k, v},
                              {running.output, running.lse});
  const Blocks blocks(BackendOf(q));
  blocks.Attend(blocks.Typed(q), blocks.Typed(k), blocks.Typed(v), causal, sum,
                running);
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
  const Blocks blocks(BackendOf(queries.q));
  const QueryRows rows = {blocks.Typed(queries.q),
                          blocks.Typed(queries.output_gradient),
                          blocks.Typed(queries.output), queries.lse};
  blocks.Backward(rows, blocks.Typed(k), blocks.Typed(v), causal, query_sum,
                  key_sum, sums);
}

}  // namespace sluice::runtime
