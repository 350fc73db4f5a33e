// CUDA's flash attention: its signatures, shapes and refusals. Signatures are
// the wheel's own schemas. The refusals and the layout of results are assumed.
// The position of windows, and the result of a row without keys, are documented
// by flash-attention's README and by mha_fwd of torch's flash_api.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "tests/fake_cuda/torch/attention.h"

namespace sluice::fake_cuda {
namespace {

// Flash aligns a causal mask to the last key, other kernels do not. So a causal
// problem must be square, where both alignments give the same mask.
void CheckFlash(const Problem& p, double dropout) {
  CheckBoth(p, dropout);
  TORCH_CHECK(
      p.q.scalar_type() == at::kHalf || p.q.scalar_type() == at::kBFloat16,
      "FlashAttention only support fp16 and bf16 data type");
  TORCH_CHECK(p.q.size(3) % 8 == 0 && p.q.size(3) <= 256,
              "FlashAttention: head_dim must be a multiple of 8, at most 256");
  TORCH_CHECK(p.k.size(3) == p.q.size(3) && p.v.size(3) == p.q.size(3),
              "FlashAttention: head dims differ");
  TORCH_CHECK(p.q.size(1) % p.k.size(1) == 0,
              "Number of heads in key/value must divide number of heads in "
              "query");
  TORCH_CHECK(
      !p.causal || p.q.size(2) == p.k.size(2),
      "a causal block that is not square is not implemented here: its rows "
      "without keys get +inf as log-sum-exp");
}

struct Random {
  at::Tensor state, unused;
};
Random NoRandom(const at::Tensor& q) {
  const auto options = q.options().dtype(at::kUInt64);
  return {at::empty({2}, options), at::empty({}, options)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt,
           c10::SymInt, at::Tensor, at::Tensor, at::Tensor>
Flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
      double dropout, bool causal, bool, std::optional<double> scale) {
  const Problem p = {q, k, v, causal, scale};
  CheckFlash(p, dropout);
  const at::Tensor output = LikeRows(q, q.size(3)), lse = LseOf(p, q.size(2));
  Attend("_scaled_dot_product_flash_attention", p, output, lse);
  const Random random = NoRandom(q);
  return {output,       lse,           at::Tensor(),
          at::Tensor(), q.size(2),     k.size(2),
          random.state, random.unused, at::empty({0}, q.options())};
}

void CheckFlashLse(const at::Tensor& lse) {
  TORCH_CHECK(lse.is_contiguous(), "FlashAttention: lse must be contiguous");
}

Three FlashBackward(const at::Tensor& gradient, const at::Tensor& q,
                    const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& output, const at::Tensor& lse,
                    const at::Tensor&, const at::Tensor&, c10::SymInt,
                    c10::SymInt, double dropout, bool causal, const at::Tensor&,
                    const at::Tensor&, std::optional<double> scale) {
  const Problem p = {q, k, v, causal, scale};
  CheckFlash(p, dropout);
  CheckFlashLse(lse);
  return AttendBackward("_scaled_dot_product_flash_attention_backward", p,
                        gradient, output, lse);
}

// The functions below implement _flash_attention_forward and _backward. Their
// tensors have rows before heads: [batch, rows, heads, dim].
void CheckDense(const Maybe& a, const Maybe& b) {
  TORCH_CHECK(!IsGiven(a) && !IsGiven(b),
              "ragged batches are not implemented here");
}

// Sets the window as mha_fwd reads it: a bound as wide as all keys is no bound,
// and causal is a bound on the right.
void SetWindow(Problem& p, std::optional<c10::SymInt> left,
               std::optional<c10::SymInt> right) {
  const auto bound = [&](const std::optional<c10::SymInt>& size) -> int64_t {
    if (!size.has_value() || size->expect_int() >= p.k.size(2)) return -1;
    return size->expect_int() < 0 ? -1 : size->expect_int();
  };
  p.left = bound(left);
  p.right = p.causal ? 0 : bound(right);
  if (p.left < 0 && p.causal) p.right = -1;  // plain causal: no window
}

Five FlashForward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const Maybe& lengths_q, const Maybe& lengths_k, c10::SymInt,
                  c10::SymInt, double dropout, bool causal, bool,
                  std::optional<double> scale, std::optional<c10::SymInt> left,
                  std::optional<c10::SymInt> right, const Maybe& used,
                  const Maybe& slopes) {
  CheckDense(lengths_q, lengths_k);
  CheckDense(used, slopes);
  Problem p = {q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal,
               scale};
  SetWindow(p, left, right);
  CheckFlash(p, dropout);
  const at::Tensor output = LikeRows(p.q, q.size(3));
  const at::Tensor lse = LseOf(p, q.size(1));
  Attend("_flash_attention_forward", p, output, lse);
  const Random random = NoRandom(q);
  return {output.transpose(1, 2), lse, random.state, random.unused,
          at::empty({0}, q.options())};
}

Three FlashForwardsBackward(
    const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& v, const at::Tensor& output, const at::Tensor& lse,
    const at::Tensor& lengths_q, const at::Tensor& lengths_k, c10::SymInt,
    c10::SymInt, double dropout, bool causal, const at::Tensor&,
    const at::Tensor&, std::optional<double> scale,
    std::optional<c10::SymInt> left, std::optional<c10::SymInt> right) {
  CheckDense(lengths_q, lengths_k);
  Problem p = {q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal,
               scale};
  SetWindow(p, left, right);
  CheckFlash(p, dropout);
  CheckFlashLse(lse);
  const auto [dq, dk, dv] =
      AttendBackward("_flash_attention_backward", p, gradient.transpose(1, 2),
                     output.transpose(1, 2), lse);
  return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)};
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_scaled_dot_product_flash_attention", Flash);
  m.impl("_scaled_dot_product_flash_attention_backward", FlashBackward);
  m.impl("_flash_attention_forward", FlashForward);
  m.impl("_flash_attention_backward", FlashForwardsBackward);
}

}  // namespace
}  // namespace sluice::fake_cuda
