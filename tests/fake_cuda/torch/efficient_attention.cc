// CUDA's efficient attention: its signatures, shapes and refusals. Signatures
// are the wheel's own schemas. The refusals, and the layout and padding of
// results, are assumed. In fp16 and bf16, backward reads the output at a row
// stride of heads * dim, whatever the tensor's stride is (documented by torch's
// mem_eff_attention/kernel_backward.h and attention_backward.cu, and measured
// on an H100). Another stride is refused here.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

#include "tests/fake_cuda/torch/attention.h"

namespace sluice::fake_cuda {
namespace {

// Grouped queries are not supported: all tensors need equally many heads.
void CheckEfficient(const Problem& p, const Maybe& bias, double dropout) {
  CheckBoth(p, dropout);
  TORCH_CHECK(!IsGiven(bias), "attn_bias is not implemented here");
  TORCH_CHECK(p.q.size(1) == p.k.size(1),
              "efficient attention has no grouped queries: ", p.q.size(1),
              " heads of q, ", p.k.size(1), " of k");
}

constexpr int64_t kLseAlignment = 32;

Four Efficient(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const Maybe& bias, bool wants_lse, double dropout, bool causal,
               std::optional<double> scale) {
  const Problem p = {q, k, v, causal, scale};
  CheckEfficient(p, bias, dropout);
  TORCH_CHECK(wants_lse,
              "attention without log-sum-exp is not implemented here");
  const int64_t rows =
      (q.size(2) + kLseAlignment - 1) / kLseAlignment * kLseAlignment;
  const at::Tensor output = LikeRows(q, v.size(3)), lse = LseOf(p, rows);
  Attend("_scaled_dot_product_efficient_attention", p, output, lse);
  const auto number = q.options().dtype(at::kLong);
  return {output, lse, at::empty({}, number), at::empty({}, number)};
}

void CheckOutput(const at::Tensor& output) {
  TORCH_CHECK(output.stride(3) == 1 &&
                  (output.size(2) == 1 ||
                   output.stride(2) == output.size(1) * output.size(3)),
              "efficient attention's backward reads rows of out at a stride of "
              "heads * dim, ",
              output.size(1) * output.size(3), ", and these are ",
              output.stride(2), " apart");
}

Four EfficientBackward(const at::Tensor& gradient, const at::Tensor& q,
                       const at::Tensor& k, const at::Tensor& v,
                       const at::Tensor& bias, const at::Tensor& output,
                       const at::Tensor& lse, const at::Tensor&,
                       const at::Tensor&, double dropout, std::array<bool, 4>,
                       bool causal, std::optional<double> scale) {
  const Problem p = {q, k, v, causal, scale};
  CheckEfficient(p, bias, dropout);
  TORCH_CHECK(lse.stride(2) == 1 && lse.size(2) >= q.size(2),
              "logsumexp: rows are contiguous, at least as many as of q");
  TORCH_CHECK(q.size(1) == 1 || lse.stride(1) % 8 == 0,
              "LSE is not correctly aligned (strideH)");
  if (q.scalar_type() != at::kFloat) CheckOutput(output);
  const auto [dq, dk, dv] =
      AttendBackward("_scaled_dot_product_efficient_attention_backward", p,
                     gradient, output, lse);
  return {dq, dk, dv, at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_scaled_dot_product_efficient_attention", Efficient);
  m.impl("_scaled_dot_product_efficient_attention_backward", EfficientBackward);
}

}  // namespace
}  // namespace sluice::fake_cuda
