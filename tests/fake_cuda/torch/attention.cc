#include "tests/fake_cuda/torch/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "tests/fake_cuda/torch/kernel.h"

namespace sluice::fake_cuda {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();

at::Tensor InFp32(const at::Tensor& t) { return t.to(at::kFloat); }

// Returns a mask [rows, keys]: the keys that each row sees through the window.
at::Tensor Seen(const Problem& p) {
  const int64_t rows = p.q.size(2), keys = p.k.size(2), own = keys - rows;
  at::Tensor seen = at::ones({rows, keys}, at::kBool);
  if (p.left >= 0) seen = seen.triu(own - p.left);
  if (p.right >= 0) seen = seen.tril(own + p.right);
  return seen;
}

// The arguments of ATen's CPU attention.
struct Asked {
  explicit Asked(const Problem& p)
      : causal(p.causal && !p.windowed()), scale(p.scale) {
    if (!p.windowed()) return;
    seen = Seen(p);
    mask = at::zeros({p.q.size(2), p.k.size(2)})
               .masked_fill_(seen.logical_not(), -kInfinite);
  }
  // Returns a mask [rows] of the rows that see no key.
  at::Tensor Empty() const { return seen.any(1).logical_not(); }

  bool causal;
  std::optional<double> scale;
  at::Tensor seen;  // undefined if there is no window
  Maybe mask;
};

}  // namespace

void CheckBoth(const Problem& p, double dropout) {
  TORCH_CHECK(dropout == 0, "dropout is not implemented here");
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

at::Tensor LikeRows(const at::Tensor& t, int64_t dim) {
  return at::empty({t.size(0), t.size(2), t.size(1), dim}, t.options())
      .transpose(1, 2);
}

at::Tensor LseOf(const Problem& p, int64_t rows) {
  return at::empty({p.q.size(0), p.q.size(1), rows},
                   p.q.options().dtype(at::kFloat));
}

void Attend(const char* name, const Problem& p, const at::Tensor& output,
            const at::Tensor& lse) {
  Launch(name, {p.q, p.k, p.v}, {output, lse},
         [asked = Asked(p)](const Tensors& in, const Tensors& out) {
           auto [o, l] = at::_scaled_dot_product_flash_attention_for_cpu(
               InFp32(in[0]), InFp32(in[1]), InFp32(in[2]), 0, asked.causal,
               asked.mask, asked.scale);
           if (asked.mask.has_value()) {
             const at::Tensor empty = asked.Empty();
             o = o.masked_fill(empty.unsqueeze(1), 0);
             l = l.masked_fill(empty, kInfinite);
           }
           out[0].copy_(o);
           out[1].fill_(kInfinite);
           out[1].narrow(2, 0, l.size(2)).copy_(l);
         });
}

void AttendBackward(const char* name, const Problem& p,
                    const at::Tensor& gradient, const at::Tensor& output,
                    const at::Tensor& lse, const Three& gradients) {
  TORCH_CHECK(output.scalar_type() == p.q.scalar_type() &&
                  gradient.scalar_type() == p.q.scalar_type(),
              "query, out and grad_out must have the same dtype");
  TORCH_CHECK(lse.scalar_type() == at::kFloat, "logsumexp must be fp32");
  const auto& [dq, dk, dv] = gradients;
  Launch(name, {gradient, p.q, p.k, p.v, output, lse}, {dq, dk, dv},
         [asked = Asked(p)](const Tensors& in, const Tensors& out) {
           const at::Tensor lse = in[5].narrow(2, 0, in[1].size(2));
           const auto [q, k, v] =
               at::_scaled_dot_product_flash_attention_for_cpu_backward(
                   InFp32(in[0]), InFp32(in[1]), InFp32(in[2]), InFp32(in[3]),
                   InFp32(in[4]), lse.contiguous(), 0, asked.causal, asked.mask,
                   asked.scale);
           out[0].copy_(q);
           out[1].copy_(k);
           out[2].copy_(v);
         });
}

Three AttendBackward(const char* name, const Problem& p,
                     const at::Tensor& gradient, const at::Tensor& output,
                     const at::Tensor& lse) {
  const Three gradients = {LikeRows(p.q, p.q.size(3)),
                           LikeRows(p.k, p.k.size(3)),
                           LikeRows(p.v, p.v.size(3))};
  AttendBackward(name, p, gradient, output, lse, gradients);
  return gradients;
}

}  // namespace sluice::fake_cuda
