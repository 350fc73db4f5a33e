#include "client/torch/math/attention_blocks.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include "kernels/ops/merge.h"

namespace sluice::runtime {
namespace {

// A causal block of at most so many rows is one call. Of 512 rows, cut at 256,
// it takes 0.79 of an uncut one's time; at 128, 0.74, but with thrice as many
// calls and buffers.
constexpr int64_t kCausalRows = 256;
constexpr int64_t kTileRows = 64;  // halves are whole tiles of ATen's

// [rows, heads, dim] <-> [1, heads, rows, dim], no copy.
at::Tensor Batched(const at::Tensor& t) {
  return t.transpose(0, 1).unsqueeze(0);
}
at::Tensor Flat(const at::Tensor& t) { return t.squeeze(0).transpose(0, 1); }

int64_t FirstHalf(int64_t rows) {
  const int64_t half = (rows + 1) / 2;
  return (half + kTileRows - 1) / kTileRows * kTileRows;
}

// Rows [first, first + rows) of each.
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

void Merge(const RunningAttention& running, const at::Tensor& output,
           const at::Tensor& lse) {
  const ops::MergeShape shape{
      .rows = output.size(0),
      .heads = output.size(1),
      .dim = output.size(2),
      .o = {running.output.stride(0), running.output.stride(1)},
      .lse = {running.lse.stride(1), running.lse.stride(0)},
      .block_o = {output.stride(0), output.stride(1)},
      .block_lse = {lse.stride(1), lse.stride(0)}};
  ops::MergeAttention(
      shape, running.output.data_ptr<float>(), running.lse.data_ptr<float>(),
      output.const_data_ptr<float>(), lse.const_data_ptr<float>());
}

void Accumulate(Sum sum, const at::Tensor& to, const at::Tensor& part) {
  sum == Sum::kBegin ? to.copy_(part) : to.add_(part);
}

// One call of ATen's, all in fp32.
void Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
            bool causal, Sum sum, const RunningAttention& running) {
  const auto [output, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      Batched(q), Batched(k), Batched(v), /*dropout_p=*/0, causal);
  if (sum == Sum::kAdd) {
    return Merge(running, Flat(output), lse.squeeze(0));
  }
  running.output.copy_(Flat(output));
  running.lse.copy_(lse.squeeze(0));
}

void AttendCausal(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  Sum sum, const RunningAttention& running) {
  const int64_t rows = q.size(0);
  if (rows <= kCausalRows) return Attend(q, k, v, true, sum, running);
  const int64_t half = FirstHalf(rows), rest = rows - half;
  const auto first = [&](const at::Tensor& t) { return t.narrow(0, 0, half); };
  const auto last = [&](const at::Tensor& t) {
    return t.narrow(0, half, rest);
  };
  const RunningAttention below = Rows(running, half, rest);
  AttendCausal(first(q), first(k), first(v), sum, Rows(running, 0, half));
  Attend(last(q), first(k), first(v), false, sum, below);
  AttendCausal(last(q), last(k), last(v), Sum::kAdd, below);
}

void Backward(const QueryRows& queries, const at::Tensor& k,
              const at::Tensor& v, bool causal, Sum query_sum, Sum key_sum,
              const GradientSums& sums) {
  const auto [dq, dk, dv] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          Batched(queries.output_gradient), Batched(queries.q), Batched(k),
          Batched(v), Batched(queries.output), queries.lse.unsqueeze(0),
          /*dropout_p=*/0, causal);
  Accumulate(query_sum, sums.q, Flat(dq));
  Accumulate(key_sum, sums.k, Flat(dk));
  Accumulate(key_sum, sums.v, Flat(dv));
}

void BackwardCausal(const QueryRows& queries, const at::Tensor& k,
                    const at::Tensor& v, Sum query_sum, Sum key_sum,
                    const GradientSums& sums) {
  const int64_t rows = k.size(0);
  if (rows <= kCausalRows) {
    return Backward(queries, k, v, true, query_sum, key_sum, sums);
  }
  const int64_t half = FirstHalf(rows), rest = rows - half;
  const at::Tensor first_k = k.narrow(0, 0, half);
  const at::Tensor first_v = v.narrow(0, 0, half);
  const QueryRows below = Rows(queries, half, rest);
  BackwardCausal(Rows(queries, 0, half), first_k, first_v, query_sum, key_sum,
                 Rows(sums, 0, half, 0, half));
  Backward(below, first_k, first_v, false, query_sum, Sum::kAdd,
           Rows(sums, half, rest, 0, half));
  BackwardCausal(below, k.narrow(0, half, rest), v.narrow(0, half, rest),
                 Sum::kAdd, key_sum, Rows(sums, half, rest, half, rest));
}

}  // namespace

void AttendBlock(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 bool causal, Sum sum, const RunningAttention& running) {
  const at::Tensor q32 = q.to(at::kFloat), k32 = k.to(at::kFloat);
  const at::Tensor v32 = v.to(at::kFloat);
  causal ? AttendCausal(q32, k32, v32, sum, running)
         : Attend(q32, k32, v32, false, sum, running);
}

void AttendBlockBackward(const QueryRows& queries, const at::Tensor& k,
                         const at::Tensor& v, bool causal, Sum query_sum,
                         Sum key_sum, const GradientSums& sums) {
  const QueryRows rows = {queries.q.to(at::kFloat),
                          queries.output_gradient.to(at::kFloat),
                          queries.output.to(at::kFloat), queries.lse};
  const at::Tensor k32 = k.to(at::kFloat), v32 = v.to(at::kFloat);
  causal ? BackwardCausal(rows, k32, v32, query_sum, key_sum, sums)
         : Backward(rows, k32, v32, false, query_sum, key_sum, sums);
}

}  // namespace sluice::runtime
