// The fallback for ATen operators under torch's CUDA key that this folder does
// not implement itself: runs ATen's CPU kernel as one operation of the stream.
//
// Sizes of results come from ATen's Meta kernels if they exist. Otherwise, or
// if a result is a number, the caller waits while the CPU kernel runs
// (LaunchAndLook in kernel.h); the race detector ignores that wait.
#include "tests/fake_cuda/torch/boxed.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/resize.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_cuda/torch/drawn.h"
#include "tests/fake_cuda/torch/kernel.h"
#include "tests/fake_cuda/torch/workspace.h"

namespace sluice::fake_cuda {
namespace {

using torch::jit::Stack;
using Change = std::function<at::Tensor(const at::Tensor&)>;

// Replaces each defined tensor among the values, in order.
void ForTensors(c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) value = change(value.toTensor());
  } else if (value.isTensorList()) {
    Tensors list = value.toTensorVector();
    for (at::Tensor& t : list) t = t.defined() ? change(t) : t;
    value = c10::IValue(std::move(list));
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector()) {
      list.push_back(t && t->defined() ? std::optional(change(*t)) : t);
    }
    value = c10::IValue(std::move(list));
  }
}
void ForTensors(Stack& values, const Change& change) {
  for (c10::IValue& value : values) ForTensors(value, change);
}

Tensors TensorsOf(Stack values) {
  Tensors tensors;
  ForTensors(values, [&](const at::Tensor& t) {
    tensors.push_back(t);
    return t;
  });
  return tensors;
}

void PutOn(at::DeviceType device, Stack& values) {
  for (c10::IValue& value : values) {
    if (value.isDevice()) value = c10::IValue(c10::Device(device));
  }
}

// Marks `copy` as a wrapped number if `t` is one: a literal of the program,
// which does not determine the type of a result.
at::Tensor LikeNumber(const at::Tensor& t, at::Tensor copy) {
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

// Returns a Meta tensor, or a wrapped number as it is: Meta kernels in Python
// expect that.
at::Tensor ToMeta(const at::Tensor& t) {
  if (t.is_cpu() && t.unsafeGetTensorImpl()->is_wrapped_number()) return t;
  at::Tensor meta =
      at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta));
  return LikeNumber(t, meta);
}

bool Writes(const c10::AliasInfo& alias) {
  return alias.isWrite() || std::any_of(alias.containedTypes().begin(),
                                        alias.containedTypes().end(), Writes);
}

// One call of an operator. GPU operands are identified by their places among
// all tensors of the stack. CPU operands can only be numbers, which are copied.
class BoxedCall {
 public:
  BoxedCall(const c10::OperatorHandle& op, Stack arguments)
      : op_(op),
        name_(op.operator_name().name),
        arguments_(std::move(arguments)) {
    const auto& declared = op.schema().arguments();
    for (size_t i = 0; i < declared.size(); ++i) {
      const c10::AliasInfo* const alias = declared[i].alias_info();
      const bool written = alias != nullptr && Writes(*alias);
      resizes_ |= written && declared[i].kwarg_only();
      Take(arguments_[i], written);
    }
    TORCH_CHECK(!reads_.empty() || !writes_.empty(), name_,
                ": no operand is on the GPU: implement the operator in "
                "tests/fake_cuda/torch");
    const at::Tensor& any = reads_.empty() ? writes_[0] : reads_[0];
    device_ = any.device();
    for (size_t i = 0; i < declared.size(); ++i) {
      if (declared[i].name() == "generator") {
        arguments_[i] =
            Drawn(device_, arguments_[i].toOptional<at::Generator>());
      }
    }
  }

  Stack Run() {
    TakeWorkspace(name_, device_);
    for (const auto& returned : op_.schema().returns()) {
      const c10::AliasInfo* const alias = returned.alias_info();
      TORCH_CHECK(alias == nullptr || Writes(*alias), name_,
                  ": returns a view of an operand: implement the operator in "
                  "tests/fake_cuda/torch");
    }
    return writes_.empty() ? RunForResults() : RunInPlace();
  }

 private:
  void Take(c10::IValue& value, bool written) {
    ForTensors(value, [&](const at::Tensor& t) {
      if (IsOnGpu(t)) {
        (written ? writes_ : reads_).push_back(t);
        places_.push_back({true, written});
        return t;
      }
      TORCH_CHECK(t.is_cpu() && t.dim() == 0 && !written, name_,
                  ": expected all tensors to be on the same device, found ",
                  t.device());
      places_.push_back({false, false});
      return LikeNumber(t, t.clone());
    });
  }

  bool HasMeta() const {
    return op_.hasKernelForDispatchKey(c10::DispatchKey::Meta);
  }
  Stack OnMeta() const {
    Stack values = arguments_;
    ForTensors(values, ToMeta);
    PutOn(at::kMeta, values);
    return values;
  }
  // Calls the CPU's kernel, on the stream's thread.
  static Stack OnCpu(const c10::OperatorHandle& op, Stack values,
                     const std::vector<std::pair<bool, bool>>& places,
                     const Tensors& reads, const Tensors& writes) {
    size_t place = 0, read = 0, write = 0;
    ForTensors(values, [&](const at::Tensor& t) {
      const auto [on_gpu, written] = places[place++];
      if (!on_gpu) return t;
      return written ? writes[write++] : reads[read++];
    });
    PutOn(at::kCPU, values);
    op.callBoxed(values);
    return values;
  }

  // Returns the arguments with Meta tensors in place of GPU tensors, as queued
  // work must keep no memory alive.
  Stack Light() const {
    Stack values = arguments_;
    ForTensors(values,
               [](const at::Tensor& t) { return IsOnGpu(t) ? ToMeta(t) : t; });
    return values;
  }

  Stack RunInPlace() {
    if (resizes_) ResizeOutputs();
    Launch(name_, reads_, writes_,
           [op = op_, values = Light(), places = places_](
               const Tensors& reads, const Tensors& writes) {
             std::vector<const void*> at;
             for (const auto& t : writes) at.push_back(t.const_data_ptr());
             OnCpu(op, values, places, reads, writes);
             for (size_t i = 0; i < writes.size(); ++i) {
               TORCH_CHECK(
                   writes[i].const_data_ptr() == at[i],
                   "the CPU kernel has resized an output: its memory moved");
             }
           });
    Stack returned;
    for (size_t i = 0; i < op_.schema().returns().size(); ++i) {
      returned.emplace_back(writes_.at(i));
    }
    return returned;
  }

  // An in-place x_() arrives as x(out=itself), which has the right size
  // already.
  bool IsInPlace() const {
    return std::any_of(reads_.begin(), reads_.end(),
                       [this](const auto& t) { return t.is_same(writes_[0]); });
  }

  // Resizes the out= tensors to the sizes of the results.
  void ResizeOutputs() {
    if (IsInPlace()) return;
    std::vector<std::vector<int64_t>> sizes;
    if (HasMeta()) {
      Stack values = OnMeta();
      const Stack before = values;
      op_.callBoxed(values);
      size_t place = 0;
      for (const at::Tensor& t : TensorsOf(before)) {
        if (places_[place++].second) sizes.push_back(t.sizes().vec());
      }
    } else if (std::any_of(writes_.begin(), writes_.end(),
                           [](const auto& t) { return t.numel() == 0; })) {
      const auto found = std::make_shared<std::vector<std::vector<int64_t>>>();
      LaunchAndLook(name_, reads_, {},
                    [op = op_, values = Light(), places = places_, found,
                     wanted = writes_.size(), type = writes_[0].scalar_type()](
                        const Tensors& reads, const Tensors&) {
                      Tensors made;
                      const auto cpu =
                          at::TensorOptions().dtype(type).device(at::kCPU);
                      for (size_t i = 0; i < wanted; ++i) {
                        made.push_back(at::empty_strided({0}, {1}, cpu));
                      }
                      OnCpu(op, values, places, reads, made);
                      for (const auto& t : made) {
                        found->push_back(t.sizes().vec());
                      }
                    });
      sizes = *found;
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (writes_[i].sizes() != sizes[i]) writes_[i].resize_(sizes[i]);
    }
  }

  at::Tensor MakeLike(const at::Tensor& t) const {
    return at::empty_strided(t.sizes(), t.strides(),
                             t.options().device(device_));
  }

  Stack RunForResults() {
    if (!HasMeta()) return LookForResults();
    Stack results = OnMeta();
    op_.callBoxed(results);
    for (const c10::IValue& value : results) {
      // The value of a number depends on the operands' data.
      if (!value.isTensor() && !value.isTensorList()) return LookForResults();
    }
    ForTensors(results, [&](const at::Tensor& t) { return MakeLike(t); });
    Launch(name_, reads_, TensorsOf(results),
           [op = op_, values = Light(), places = places_](
               const Tensors& reads, const Tensors& writes) {
             const Tensors got =
                 TensorsOf(OnCpu(op, values, places, reads, {}));
             for (size_t i = 0; i < got.size(); ++i) {
               writes.at(i).copy_(got[i]);
             }
           });
    return results;
  }

  Stack LookForResults() {
    const auto got = std::make_shared<Stack>();
    LaunchAndLook(name_, reads_, {},
                  [op = op_, values = Light(), places = places_, got](
                      const Tensors& reads, const Tensors&) {
                    *got = OnCpu(op, values, places, reads, {});
                  });
    TORCH_CHECK(got->size() == op_.schema().returns().size(), name_,
                ": the CPU form failed");
    Stack results = *got;
    ForTensors(results, [&](const at::Tensor& t) { return MakeLike(t); });
    const Tensors made = TensorsOf(results);
    if (made.empty()) return results;
    Launch(name_, {}, made, [got](const Tensors&, const Tensors& writes) {
      const Tensors from = TensorsOf(*got);
      for (size_t i = 0; i < from.size(); ++i) writes.at(i).copy_(from[i]);
    });
    return results;
  }

  const c10::OperatorHandle op_;
  const std::string name_;
  Stack arguments_;
  // For each tensor: whether it is on the GPU, and whether it is written.
  std::vector<std::pair<bool, bool>> places_;
  Tensors reads_, writes_;
  bool resizes_ = false;
  at::Device device_ = at::kCUDA;
};

}  // namespace

void RunBoxed(const c10::OperatorHandle& op, c10::DispatchKeySet,
              Stack* stack) {
  // Python's dispatch modes must not see the calls that a kernel makes.
  const c10::impl::ExcludeDispatchKeyGuard no_modes(c10::DispatchKeySet{
      c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});
  const size_t count = op.schema().arguments().size();
  Stack results = BoxedCall(op, torch::jit::last(*stack, count).vec()).Run();
  torch::jit::drop(*stack, count);
  for (c10::IValue& value : results) stack->push_back(std::move(value));
}

namespace {

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&RunBoxed>());
}

}  // namespace
}  // namespace sluice::fake_cuda
