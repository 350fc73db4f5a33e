#include "client/torch/math/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>

#include "client/torch/placement.h"

namespace sluice::runtime {

RopeTables MakeRopeTables(int64_t begin, int64_t rows, int64_t dim,
                          double theta, at::Device device) {
  const at::TensorOptions wide = On(device, at::kDouble);
  const int64_t half = dim / 2;
  const at::Tensor pair = at::arange(half, wide);
  const at::Tensor frequency =
      at::pow(theta, pair.mul(-2.0 / static_cast<double>(dim)));
  const at::Tensor position = at::arange(begin, begin + rows, wide);
  const at::Tensor angle = at::outer(position, frequency).view({rows, 1, half});
  return {at::cos(angle).to(at::kFloat), at::sin(angle).to(at::kFloat)};
}

void ApplyRope(at::Tensor& x, const RopeTables& tables, bool inverse) {
  const int64_t half = x.size(2) / 2;
  at::Tensor first = x.narrow(2, 0, half), second = x.narrow(2, half, half);
  const at::Tensor a = first.to(at::kFloat), b = second.to(at::kFloat);
  const double sign = inverse ? -1 : 1;
  const at::Tensor turned = (b * tables.cos).addcmul_(a, tables.sin, sign);
  first.copy_((a * tables.cos).addcmul_(b, tables.sin, -sign));
  second.copy_(turned);
}

}  // namespace sluice::runtime
