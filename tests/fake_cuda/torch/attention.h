// What the CPU forms of CUDA's attention operators share: a problem, what all
// refuse, and ATen's CPU attention in fp32, which computes it.
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

// [batch, heads, rows, dim]; scale as the caller wants it, none: 1/sqrt(dim).
struct Problem {
  at::Tensor q, k, v;
  bool causal = false;
  std::optional<double> scale;
  // Keys that a row sees to either side of its own, where the last row's own
  // is the last key; negative: all.
  int64_t left = -1, right = -1;
  bool windowed() const { return left >= 0 || right >= 0; }
};

// Four dimensions, one dtype, the last dimension contiguous, no dropout.
void CheckBoth(const Problem& p, double dropout);
inline bool IsGiven(const Maybe& t) { return t.has_value() && t->defined(); }

// As the kernels lay their results out: [batch, rows, heads, dim] in memory.
at::Tensor LikeRows(const at::Tensor& t, int64_t dim);
// [batch, heads, rows], fp32.
at::Tensor LseOf(const Problem& p, int64_t rows);

// `lse` may have more rows than q: they become infinite. A row without keys has
// an output of 0 and a log-sum-exp of +infinity.
void Attend(const char* name, const Problem& p, const at::Tensor& output,
            const at::Tensor& lse);
// Into `gradients`, of q, k and v. `lse`: [batch, heads, at least q's rows].
void AttendBackward(const char* name, const Problem& p,
                    const at::Tensor& gradient, const at::Tensor& output,
                    const at::Tensor& lse, const Three& gradients);
// The same into new ones, laid out LikeRows.
Three AttendBackward(const char* name, const Problem& p,
                     const at::Tensor& gradient, const at::Tensor& output,
                     const at::Tensor& lse);

}  // namespace sluice::fake_cuda
