#include "client/torch/math/rope.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>

#include "client/torch/math/token_calls.h"
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

at::Tensor ApplyRope(const at::Tensor& x, const RopeTables& tables,
                     bool inverse, at::ScalarType type) {
  const bool in_place = x.scalar_type() == type;
  const at::Tensor y =
      in_place ? x : at::empty(x.sizes(), x.options().dtype(type));
  const ObservedCall observed("sluice::rope", {x, tables.cos, tables.sin}, {y});
  const ops::RopeShape shape = {x.size(0), x.size(1), x.size(2), inverse};
  const auto turn = [&]<typename In, typename Out>() {
    BackendOf(x).Compute(RopeCall<In, Out>{shape,
                                           {.x = Elements<In>(x),
                                            .cos = Elements<float>(tables.cos),
                                            .sin = Elements<float>(tables.sin),
                                            .y = Elements<Out>(y)}});
  };
  ForElement(type, [&]<typename T>() {
    in_place ? turn.template operator()<T, T>()
             : turn.template operator()<float, T>();
  });
  return y;
}

}  // namespace sluice::runtime
