// Tensors for kernels/ops/token_math (internal to client/torch/math).
#pragma once

#include <ATen/core/Tensor.h>

#include "client/torch/backend/backend.h"
#include "client/torch/math/observed_call.h"
#include "proto/base/status.h"

namespace sluice::runtime {

// Returns the elements of a contiguous tensor; null if it is undefined.
template <typename T>
T* Elements(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  SLUICE_CHECK(tensor.is_contiguous());
  return static_cast<T*>(tensor.data_ptr());
}

// Calls body.operator()<T>() for the element of a dtype.
// REQUIRES: fp32 or bf16.
void ForElement(at::ScalarType type, auto&& body) {
  if (type == at::kFloat) return body.template operator()<float>();
  SLUICE_CHECK(type == at::kBFloat16);
  body.template operator()<ops::BFloat16>();
}

}  // namespace sluice::runtime
