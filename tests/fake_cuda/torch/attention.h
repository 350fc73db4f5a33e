// Common parts of the CPU forms of CUDA's attention operators: the operands,
// the checks that all operators make, and the computation by ATen's CPU
// attention in fp32.
//
// Thread safety: as kernel.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace sluice::fake_cuda {

using Maybe = std::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Five =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// Tensors are [batch, heads, rows, dim]. An unset `scale` means 1/sqrt(dim).
struct Problem {
  at::Tensor q, k, v;
  bool causal = false;
  std::optional<double> scale;
  // The number of keys that a row sees on each side of its own key, or negative
  // for all keys. The last row's own key is the last key.
  int64_t left = -1, right = -1;
  bool windowed() const { return left >= 0 || right >= 0; }
};

// Checks for four dimensions, one dtype, a contiguous last dimension, as many
// rows and heads of k as of v, and no dropout.
void CheckBoth(const Problem& p, double dropout);
inline bool IsGiven(const Maybe& t) { return t.has_value() && t->defined(); }

// Returns a tensor in the kernels' result layout: [batch, rows, heads, dim] in
// memory.
at::Tensor LikeRows(const at::Tensor& t, int64_t dim);
// Returns a tensor [batch, heads, rows] in fp32.
at::Tensor LseOf(const Problem& p, int64_t rows);

// Computes the attention. Rows of `lse` beyond those of q become infinite. A
// row without keys has an output of 0 and a log-sum-exp of +infinity.
void Attend(const char* name, const Problem& p, const at::Tensor& output,
            const at::Tensor& lse);
// Computes `gradients` of q, k and v. `lse` is [batch, heads, rows], and has at
// least as many rows as q.
void AttendBackward(const char* name, const Problem& p,
                    const at::Tensor& gradient, const at::Tensor& output,
                    const at::Tensor& lse, const Three& gradients);
// Computes the gradients into new tensors, laid out as by LikeRows.
Three AttendBackward(const char* name, const Problem& p,
                     const at::Tensor& gradient, const at::Tensor& output,
                     const at::Tensor& lse);

}  // namespace sluice::fake_cuda
