// CUDA's attention operators: their signatures, shapes and refusals, computed
// by ATen's CPU attention in fp32. Signatures are the wheel's own schemas. What
// each refuses, and how results are laid out and padded, is assumed: torch's
// sources of these kernels are not in the wheel and were not read.
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <array>
#include <limits>
#include <optional>
#include <tuple>

#include "tests/fake_cuda/torch/kernel.h"

namespace sluice::fake_cuda {
namespace {

using Maybe = std::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Five =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// [batch, heads, rows, dim]; scale as the caller wants it, none: 1/sqrt(dim).
struct Problem {
  at::Tensor q, k, v;
  bool causal = false;
  std::optional<double> scale;
};

at::Tensor InFp32(const at::Tensor& t) { return t.to(at::kFloat); }

// As the kernels lay their results out: [batch, rows, heads, dim] in memory.
at::Tensor LikeRows(const at::Tensor& t, int64_t dim) {
  return at::empty({t.size(0), t.size(2), t.size(1), dim}, t.options())
      .transpose(1, 2);
}

void CheckBoth(const Problem& p, double dropout) {
  TORCH_CHECK(dropout == 0, "dropout is not built here");
  TORCH_CHECK(p.q.dim() == 4 && p.k.dim() == 4 && p.v.dim() == 4,
              "attention takes [batch, heads, rows, dim]");
  for (const at::Tensor& t : {p.q, p.k, p.v}) {
    TORCH_CHECK(t.scalar_type() == p.q.scalar_type(),
                "query, key and value must have the same dtype");
    TORCH_CHECK(t.stride(3) == 1, "the last dimension must be contiguous");
  }
  TORCH_CHECK(p.k.size(2) == p.v.size(2) && p.k.size(1) == p.v.size(1),
              "key and value differ in rows or heads");
}

// fp16 and bf16, as many heads of q as a multiple of k's, dim <= 256; a causal
// mask is aligned to the last key, so only square ones mean the same to all.
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
  TORCH_CHECK(!p.causal || p.q.size(2) == p.k.size(2),
              "a causal block that is not square is not built here: its rows "
              "without keys get +inf as log-sum-exp");
}

// No grouped queries: as many heads everywhere.
void CheckEfficient(const Problem& p, const Maybe& bias, double dropout) {
  CheckBoth(p, dropout);
  TORCH_CHECK(!bias || !bias->defined(), "attn_bias is not built here");
  TORCH_CHECK(p.q.size(1) == p.k.size(1),
              "efficient attention has no grouped queries: ", p.q.size(1),
              " heads of q, ", p.k.size(1), " of k");
}

void Attend(const char* name, const Problem& p, const at::Tensor& output,
            const at::Tensor& lse) {
  Launch(name, {p.q, p.k, p.v}, {output, lse},
         [causal = p.causal, scale = p.scale](const Tensors& in,
                                              const Tensors& out) {
           const auto [o, l] = at::_scaled_dot_product_flash_attention_for_cpu(
               InFp32(in[0]), InFp32(in[1]), InFp32(in[2]), 0, causal, {},
               scale);
           out[0].copy_(o);
           out[1].fill_(std::numeric_limits<float>::infinity());
           out[1].narrow(2, 0, l.size(2)).copy_(l);
         });
}

Three AttendBackward(const char* name, const Problem& p,
                     const at::Tensor& gradient, const at::Tensor& output,
                     const at::Tensor& lse) {
  TORCH_CHECK(output.scalar_type() == p.q.scalar_type() &&
                  gradient.scalar_type() == p.q.scalar_type(),
              "query, out and grad_out must have the same dtype");
  TORCH_CHECK(lse.scalar_type() == at::kFloat, "logsumexp must be fp32");
  const Three gradients = {LikeRows(p.q, p.q.size(3)),
                           LikeRows(p.k, p.k.size(3)),
                           LikeRows(p.v, p.v.size(3))};
  const auto& [dq, dk, dv] = gradients;
  Launch(name, {gradient, p.q, p.k, p.v, output, lse}, {dq, dk, dv},
         [causal = p.causal, scale = p.scale](const Tensors& in,
                                              const Tensors& out) {
           const at::Tensor lse = in[5].narrow(2, 0, in[1].size(2));
           const auto [q, k, v] =
               at::_scaled_dot_product_flash_attention_for_cpu_backward(
                   InFp32(in[0]), InFp32(in[1]), InFp32(in[2]), InFp32(in[3]),
                   InFp32(in[4]), lse.contiguous(), 0, causal, {}, scale);
           out[0].copy_(q);
           out[1].copy_(k);
           out[2].copy_(v);
         });
  return gradients;
}

at::Tensor LseOf(const Problem& p, int64_t rows) {
  return at::empty({p.q.size(0), p.q.size(1), rows},
                   p.q.options().dtype(at::kFloat));
}

// --- flash -------------------------------------------------------------------

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

// The same kernels, rows before heads: [batch, rows, heads, dim].
void CheckDense(const Maybe& a, const Maybe& b, std::optional<c10::SymInt> left,
                std::optional<c10::SymInt> right) {
  TORCH_CHECK((!a || !a->defined()) && (!b || !b->defined()),
              "ragged batches are not built here");
  for (const auto& window : {left, right}) {
    TORCH_CHECK(!window || window->expect_int() < 0,
                "windows are not built here");
  }
}

Five FlashForward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const Maybe& lengths_q, const Maybe& lengths_k, c10::SymInt,
                  c10::SymInt, double dropout, bool causal, bool,
                  std::optional<double> scale, std::optional<c10::SymInt> left,
                  std::optional<c10::SymInt> right, const Maybe& used,
                  const Maybe& slopes) {
  CheckDense(lengths_q, lengths_k, left, right);
  CheckDense(used, slopes, std::nullopt, std::nullopt);
  const Problem p = {q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                     causal, scale};
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
  CheckDense(lengths_q, lengths_k, left, right);
  const Problem p = {q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                     causal, scale};
  CheckFlash(p, dropout);
  CheckFlashLse(lse);
  const auto [dq, dk, dv] =
      AttendBackward("_flash_attention_backward", p, gradient.transpose(1, 2),
                     output.transpose(1, 2), lse);
  return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)};
}

// --- efficient ---------------------------------------------------------------

constexpr int64_t kLseAlignment = 32;

Four Efficient(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const Maybe& bias, bool wants_lse, double dropout, bool causal,
               std::optional<double> scale) {
  const Problem p = {q, k, v, causal, scale};
  CheckEfficient(p, bias, dropout);
  TORCH_CHECK(wants_lse, "without log-sum-exp it is not built here");
  const int64_t rows =
      (q.size(2) + kLseAlignment - 1) / kLseAlignment * kLseAlignment;
  const at::Tensor output = LikeRows(q, v.size(3)), lse = LseOf(p, rows);
  Attend("_scaled_dot_product_efficient_attention", p, output, lse);
  const auto number = q.options().dtype(at::kLong);
  return {output, lse, at::empty({}, number), at::empty({}, number)};
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
  const auto [dq, dk, dv] =
      AttendBackward("_scaled_dot_product_efficient_attention_backward", p,
                     gradient, output, lse);
  return {dq, dk, dv, at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_scaled_dot_product_flash_attention", Flash);
  m.impl("_scaled_dot_product_flash_attention_backward", FlashBackward);
  m.impl("_flash_attention_forward", FlashForward);
  m.impl("_flash_attention_backward", FlashForwardsBackward);
  m.impl("_scaled_dot_product_efficient_attention", Efficient);
  m.impl("_scaled_dot_product_efficient_attention_backward", EfficientBackward);
}

}  // namespace
}  // namespace sluice::fake_cuda
