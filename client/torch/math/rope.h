// Rotary position embedding, rotate-half as in Llama: pairs (i, i + dim/2) of a
// head turn by position * theta^(-2i/dim). Tables are made one chunk at a time,
// so nothing here grows with the sequence. Angles are computed in fp64, since
// an fp32 angle of a position in the millions is wrong in its second decimal.
//
// Throws what ATen throws. Thread safety: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

namespace sluice::runtime {

struct RopeTables {
  at::Tensor cos, sin;  // [rows, 1, dim / 2], fp32
};

// Returns the tables of positions [begin, begin + rows).
RopeTables MakeRopeTables(int64_t begin, int64_t rows, int64_t dim,
                          double theta, at::Device device);

// Rotates x [rows, heads, dim], contiguous, in fp32; `inverse` rotates back,
// which is also the gradient. The result has dtype `type`. If x has that dtype,
// the result is in place; else x is fp32 and the result is a new tensor.
at::Tensor ApplyRope(const at::Tensor& x, const RopeTables& tables,
                     bool inverse, at::ScalarType type);

}  // namespace sluice::runtime
