// cuDNN's attention as torch 2.11 calls it: its signatures, shapes and
// refusals.
//
// documented, by torch's sources (cudnn/MHA.cpp, transformers/cuda/
// attention_backward.cu, sdp_utils.cpp), its own Python (_meta_registrations,
// context parallel) and cudnn-frontend's sdpa_support_surface.h:
//   - The dtype is fp16 or bf16. Another dtype is refused here, as torch's
//     operators do not check it and read the bytes as fp16.
//   - The head dim is a multiple of 8, at most 128. Queries may be grouped.
//   - A single key is refused, a single query is not.
//   - The first row of a causal mask sees the first key.
//   - Results have the strides of q, k and v. The log-sum-exp is [batch, heads,
//     rows, 1], in backward as well.
//   - Seed and offset must be numbers on the GPU: backward converts them on
//     Blackwell, where an undefined tensor fails.
//   - Backward keeps a plan for the sizes and strides of q, k and v, and for
//     `causal`. Other strides of the output, its gradient or the log-sum-exp
//     are refused, as a kept plan would read them wrongly.
// assumed: operands of different sizes or dtypes, and a log-sum-exp that is not
// contiguous, are refused.
// unmodelled, refused: bias, dropout, ragged batches, unequal head dims, causal
// blocks that are not square, a forward without log-sum-exp.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "proto/base/mutex.h"
#include "tests/fake_cuda/torch/attention.h"

namespace sluice::fake_cuda {
namespace {

void CheckCudnn(const Problem& p, const Maybe& bias, double dropout) {
  CheckBoth(p, dropout);
  TORCH_CHECK(!IsGiven(bias), "attn_bias is not implemented here");
  TORCH_CHECK(
      p.q.scalar_type() == at::kHalf || p.q.scalar_type() == at::kBFloat16,
      "cuDNN SDPA reads ", p.q.scalar_type(), " as fp16");
  TORCH_CHECK(p.q.size(3) % 8 == 0 && p.q.size(3) <= 128,
              "cuDNN SDPA: head_dim must be a multiple of 8, at most 128");
  TORCH_CHECK(p.k.size(3) == p.q.size(3) && p.v.size(3) == p.q.size(3),
              "unequal head dims are not implemented here");
  TORCH_CHECK(p.q.size(1) % p.k.size(1) == 0,
              "For group-query attention, number of heads for key and query "
              "must be a factor of number of heads for query");
  TORCH_CHECK(p.k.size(2) != 1,
              "cudnn SDPA does not support key/value sequence length 1.");
  TORCH_CHECK(!p.causal || p.q.size(2) == p.k.size(2),
              "a causal block that is not square is not implemented here");
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt,
           c10::SymInt, at::Tensor, at::Tensor, at::Tensor>
Cudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
      const Maybe& bias, bool wants_lse, double dropout, bool causal, bool,
      std::optional<double> scale) {
  const Problem p = {q, k, v, causal, scale};
  CheckCudnn(p, bias, dropout);
  TORCH_CHECK(wants_lse,
              "attention without log-sum-exp is not implemented here");
  const at::Tensor output = at::empty_like(q), lse = LseOf(p, q.size(2));
  Attend("_scaled_dot_product_cudnn_attention", p, output, lse);
  const auto number = q.options().dtype(at::kLong);
  return {output,
          lse.unsqueeze(3),
          at::Tensor(),
          at::Tensor(),
          q.size(2),
          k.size(2),
          at::empty({}, number),
          at::empty({}, number),
          at::Tensor()};
}

using Numbers = std::vector<int64_t>;

// Adds 0 for a dimension of one element, as its stride has no meaning.
void AddStrides(Numbers& all, const at::Tensor& t) {
  for (int64_t i = 0; i < t.dim(); ++i) {
    all.push_back(t.size(i) == 1 ? 0 : t.stride(i));
  }
}

// Checks that `others` have the same strides as in the first backward with the
// same `causal` and the same sizes and strides of q, k and v.
void CheckPlan(const Problem& p, const std::vector<at::Tensor>& others) {
  static Mutex mutex;
  static auto* const plans = new std::map<Numbers, Numbers>;
  Numbers key = {p.causal}, strides;
  for (const at::Tensor& t : {p.q, p.k, p.v}) {
    key.insert(key.end(), t.sizes().begin(), t.sizes().end());
    AddStrides(key, t);
  }
  for (const at::Tensor& t : others) AddStrides(strides, t);
  const MutexLock lock(mutex);
  const auto plan = plans->emplace(key, strides).first;
  TORCH_CHECK(plan->second == strides,
              "cuDNN SDPA backward: its plan for these q, k and v was made for "
              "other strides of out, grad_out or logsumexp");
}

Three CudnnBackward(const at::Tensor& gradient, const at::Tensor& q,
                    const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& output, const at::Tensor& lse,
                    const at::Tensor& seed, const at::Tensor& offset,
                    const at::Tensor& bias, const at::Tensor& lengths_q,
                    const at::Tensor& lengths_k, c10::SymInt max_q,
                    c10::SymInt max_k, double dropout, bool causal,
                    std::optional<double> scale) {
  const Problem p = {q, k, v, causal, scale};
  CheckCudnn(p, bias, dropout);
  TORCH_CHECK(!lengths_q.defined() && !lengths_k.defined(),
              "ragged batches are not implemented here");
  TORCH_CHECK(
      max_q.expect_int() == q.size(2) && max_k.expect_int() == k.size(2),
      "cuDNN SDPA backward: max_q and max_k must be the rows of q and k");
  for (const at::Tensor& t : {seed, offset}) {
    TORCH_CHECK(t.defined() && t.is_cuda() && t.scalar_type() == at::kLong,
                "cuDNN SDPA backward converts seed and offset on Blackwell: "
                "pass them as tensors on the GPU");
  }

  TORCH_CHECK(output.sizes() == q.sizes() && gradient.sizes() == q.sizes() &&
                  output.stride(3) == 1 && gradient.stride(3) == 1,
              "cuDNN SDPA backward: out and grad_out must have query's shape");
  TORCH_CHECK(lse.dim() == 4 && lse.size(3) == 1 && lse.is_contiguous() &&
                  lse.size(2) == q.size(2) && lse.size(1) == q.size(1),
              "cuDNN SDPA backward: logsumexp is [batch, heads, rows, 1]");
  CheckPlan(p, {output, gradient, lse});
  const Three gradients = {at::empty_like(q), at::empty_like(k),
                           at::empty_like(v)};
  AttendBackward("_scaled_dot_product_cudnn_attention_backward", p, gradient,
                 output, lse.squeeze(3), gradients);
  return gradients;
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_scaled_dot_product_cudnn_attention", Cudnn);
  m.impl("_scaled_dot_product_cudnn_attention_backward", CudnnBackward);
}

}  // namespace
}  // namespace sluice::fake_cuda
