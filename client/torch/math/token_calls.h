// Helpers for calls of kernels with tensors (internal to client/torch/math).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <vector>

#include "client/torch/backend/backend.h"
#include "proto/base/status.h"

namespace sluice::runtime {

// Returns the elements of a contiguous tensor; null if it is undefined.
template <typename T>
T* Elements(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  SLUICE_CHECK(tensor.is_contiguous());
  return static_cast<T*>(tensor.data_ptr());
}

// Calls body.operator()<T>() with T for `type`, which is fp32 or bf16.
void ForElement(at::ScalarType type, auto&& body) {
  if (type == at::kFloat) return body.template operator()<float>();
  SLUICE_CHECK(type == at::kBFloat16);
  body.template operator()<ops::BFloat16>();
}

// While an object lives, torch's observers (its profiler, tests) see the code
// that runs as one operator with this name and these tensors.
class ObservedCall {
 public:
  ObservedCall(const char* name, at::TensorList reads, at::TensorList writes)
      : function_(at::RecordScope::FUNCTION) {
    if (!function_.isActive()) return;
    reads_.assign(reads.begin(), reads.end());
    function_.before(
        name, c10::ArrayRef<const c10::IValue>(reads_.data(), reads_.size()));
    if (function_.needsOutputs()) {
      function_.setOutputs(
          std::vector<c10::IValue>(writes.begin(), writes.end()));
    }
  }

 private:
  std::vector<c10::IValue> reads_;
  at::RecordFunction function_;
};

}  // namespace sluice::runtime
