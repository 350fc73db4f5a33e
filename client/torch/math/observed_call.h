// Reports a call that is not one of ATen's operators to torch's observers
// (internal to client/torch/math).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <vector>

namespace sluice::runtime {

// While an object lives, torch's observers (its profiler, tests) see the code
// that runs as one operator with this name and these tensors.
class ObservedCall {
 public:
  // Undefined tensors are ignored.
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
