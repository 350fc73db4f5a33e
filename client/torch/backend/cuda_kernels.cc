#include "client/torch/backend/cuda_kernels.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <limits>
#include <tuple>

#include "client/torch/backend/head_layout.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

// Returns [1, heads, rows, dim], stored with rows before heads.
at::Tensor InRows(const at::Tensor& t) { return Batched(t.contiguous()); }

// --- flash: [1, rows, heads, dim] --------------------------------------------

AttentionResult Flash(const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v, bool causal) {
  const auto result = at::_flash_attention_forward(
      q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), /*cum_seq_q=*/{},
      /*cum_seq_k=*/{}, q.size(0), k.size(0), /*dropout_p=*/0, causal,
      /*return_debug_mask=*/false);
  return {std::get<0>(result).squeeze(0), std::get<1>(result).squeeze(0)};
}

AttentionGradients FlashBackward(const QueryRows& queries, const at::Tensor& k,
                                 const at::Tensor& v, bool causal) {
  const at::ScalarType type = queries.q.scalar_type();
  const at::Tensor none;
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      queries.output_gradient.to(type).unsqueeze(0), queries.q.unsqueeze(0),
      k.unsqueeze(0), v.unsqueeze(0), queries.output.to(type).unsqueeze(0),
      queries.lse.unsqueeze(0).contiguous(), none, none, queries.q.size(0),
      k.size(0), /*dropout_p=*/0, causal, none, none);
  return {dq.squeeze(0), dk.squeeze(0), dv.squeeze(0)};
}

// --- efficient: [1, heads, rows, dim], as many heads everywhere --------------

constexpr int64_t kLseAlignment = 32;  // of rows, in efficient kernels

// Repeats each head of k or v for the queries of its group.
at::Tensor Expanded(const at::Tensor& t, int64_t heads) {
  const int64_t group = heads / t.size(1);
  return group == 1 ? t : t.repeat_interleave(group, 1);
}
at::Tensor SumOfGroups(const at::Tensor& gradient, int64_t kv_heads) {
  if (gradient.size(1) == kv_heads) return gradient;
  return gradient.unflatten(1, {kv_heads, -1}).sum(2);
}

AttentionResult Efficient(const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, bool causal) {
  const auto result = at::_scaled_dot_product_efficient_attention(
      Batched(q), Batched(Expanded(k, q.size(1))),
      Batched(Expanded(v, q.size(1))), /*attn_bias=*/{},
      /*compute_log_sumexp=*/true, /*dropout_p=*/0, causal);
  return {Flat(std::get<0>(result)),
          std::get<1>(result).squeeze(0).narrow(1, 0, q.size(0))};
}

// Pads the log-sum-exp as the kernels do: rows past the end are infinite.
at::Tensor PaddedLse(const at::Tensor& lse) {
  const int64_t rows = lse.size(1);
  const int64_t padded =
      (rows + kLseAlignment - 1) / kLseAlignment * kLseAlignment;
  at::Tensor all =
      at::full({1, lse.size(0), padded}, std::numeric_limits<float>::infinity(),
               lse.options());
  all.narrow(2, 0, rows).copy_(lse);
  return all;
}

// In bf16 the kernel reads the output with a row stride of heads * dim,
// whatever the tensor's stride is (Params::o_strideM of torch's
// kernel_backward.h). With another layout an H100 returned a dq that was off by
// 5 times its norm.
AttentionGradients EfficientBackward(const QueryRows& queries,
                                     const at::Tensor& k, const at::Tensor& v,
                                     bool causal) {
  const int64_t heads = queries.q.size(1);
  const at::ScalarType type = queries.q.scalar_type();
  const at::Tensor none;
  const auto [dq, dk, dv, bias] =
      at::_scaled_dot_product_efficient_attention_backward(
          Batched(queries.output_gradient.to(type)), Batched(queries.q),
          Batched(Expanded(k, heads)), Batched(Expanded(v, heads)), none,
          InRows(queries.output.to(type)), PaddedLse(queries.lse), none, none,
          /*dropout_p=*/0, {true, true, true, false}, causal);
  return {Flat(dq), SumOfGroups(Flat(dk), k.size(1)),
          SumOfGroups(Flat(dv), v.size(1))};
}

// --- cuDNN: [1, heads, rows, dim], rows before heads in memory ---------------
// The layout never changes, because torch caches a backward's plan by the sizes
// and strides of q, k and v alone: with another layout of the output or its
// gradient, a plan made for the first layout would misread it.

AttentionResult Cudnn(const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v, bool causal) {
  const auto result = at::_scaled_dot_product_cudnn_attention(
      InRows(q), InRows(k), InRows(v), /*attn_bias=*/{},
      /*compute_log_sumexp=*/true, /*dropout_p=*/0, causal);
  return {Flat(std::get<0>(result)),
          std::get<1>(result).reshape({q.size(1), q.size(0)})};
}

AttentionGradients CudnnBackward(const QueryRows& queries, const at::Tensor& k,
                                 const at::Tensor& v, bool causal) {
  const at::ScalarType type = queries.q.scalar_type();
  const at::Tensor none;
  // Unused without dropout, but Blackwell's path converts its dtype.
  const at::Tensor seed = at::empty({}, queries.q.options().dtype(at::kLong));
  const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      InRows(queries.output_gradient.to(type)), InRows(queries.q), InRows(k),
      InRows(v), InRows(queries.output.to(type)),
      queries.lse.contiguous().unsqueeze(0).unsqueeze(3), seed, seed, none,
      none, none, queries.q.size(0), k.size(0), /*dropout_p=*/0, causal);
  return {Flat(dq), Flat(dk), Flat(dv)};
}

}  // namespace

KernelCalls CallsOf(stream::AttentionKernel kernel) {
  using enum stream::AttentionKernel;
  if (kernel == kFlash) return {Flash, FlashBackward};
  if (kernel == kCudnn) return {Cudnn, CudnnBackward};
  SLUICE_CHECK(kernel == kEfficient);
  return {Efficient, EfficientBackward};
}

}  // namespace sluice::runtime
