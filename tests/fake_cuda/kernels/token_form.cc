// kernels/ops/token_math.cu, compiled for the CPU. Each SLUICE_SEED_… plants
// one defect, to check that the tests find it.
// clang-format off
#include "tests/fake_cuda/kernels/language.h"
#ifdef SLUICE_SEED_NO_SYNCTHREADS
#define __syncthreads() static_cast<void>(0)
#endif
#include "kernels/ops/token_math.cu"
// clang-format on

#include "tests/fake_cuda/kernels/token_form.h"

namespace sluice::fake_cuda {
namespace {

template <typename T>
const T& At(void* const* arguments, int i) {
  return *static_cast<const T*>(arguments[i]);
}

// The bytes that a launch uses, tensor by tensor. The first pass collects each
// tensor's pointer and size in bytes. The second pass replaces each pointer by
// its view.
class Uses {
 public:
  // For the first pass.
  explicit Uses(std::vector<Access>* told) : told_(told) {}
  // For the second pass.
  explicit Uses(const Views& views) : views_(&views) {}

  template <typename T>
  void Reads(const T*& tensor, int64_t elements) {
    tensor = static_cast<const T*>(Use(tensor, elements * sizeof(T), false));
  }
  template <typename T>
  void Writes(T*& tensor, int64_t elements) {
    tensor = static_cast<T*>(Use(tensor, elements * sizeof(T), true));
  }

 private:
  void* Use(const void* tensor, size_t size, bool writes) {
    if (tensor == nullptr) return nullptr;
    if (told_ != nullptr) {
      told_->push_back({tensor, size, writes});
      return const_cast<void*>(tensor);
    }
    return (*views_)[next_++];
  }

  std::vector<Access>* told_ = nullptr;
  const Views* views_ = nullptr;
  size_t next_ = 0;
};

template <typename T>
void UseAll(Uses& uses, RmsNormTensors<T>& t, const RmsNormShape& shape) {
  uses.Reads(t.x, shape.rows * shape.width);
  uses.Reads(t.weight, shape.width);
  uses.Writes(t.y, shape.rows * shape.width);
}
template <typename T>
void UseAll(Uses& uses, RmsNormGradients<T>& t, const RmsNormShape& shape) {
  const int64_t size = shape.rows * shape.width;
  uses.Reads(t.x, size);
  uses.Reads(t.weight, shape.width);
  for (const T*& dy : t.dy) uses.Reads(dy, size);
  uses.Reads(t.residual, size);
  uses.Writes(t.dx, size);
  uses.Writes(t.weight_gradient, shape.parts() * shape.width);
}
template <typename In, typename Out>
void UseAll(Uses& uses, RopeTensors<In, Out>& t, const RopeShape& shape) {
  uses.Reads(t.x, shape.rows * shape.heads * shape.dim);
  uses.Reads(t.cos, shape.rows * (shape.dim / 2));
  uses.Reads(t.sin, shape.rows * (shape.dim / 2));
  uses.Writes(t.y, shape.rows * shape.heads * shape.dim);
}
template <typename T>
void UseAll(Uses& uses, SwigluTensors<T>& t, const SwigluShape& shape) {
  const int64_t n = shape.elements;
  uses.Reads(t.gate, n);
  uses.Reads(t.up, n);
  uses.Writes(t.y, n);
}
template <typename T>
void UseAll(Uses& uses, SwigluGradients<T>& t, const SwigluShape& shape) {
  const int64_t n = shape.elements;
  uses.Reads(t.dy, n);
  uses.Reads(t.gate, n);
  uses.Reads(t.up, n);
  uses.Writes(t.d_gate, n);
  uses.Writes(t.d_up, n);
}
template <typename T>
void UseAll(Uses& uses, SoftmaxTensors<T>& t, const SoftmaxShape& shape) {
  uses.Writes(t.logits, shape.rows * shape.width);
  uses.Reads(t.labels, shape.rows);
  uses.Writes(t.loss, shape.rows);
}

template <typename Shape, typename Tensors>
KernelForm Form(void (*kernel)(Shape, Tensors)) {
  return {
      {sizeof(Shape), sizeof(Tensors)},
      [](void* const* arguments) {
        std::vector<Access> told;
        Uses uses(&told);
        auto tensors = At<Tensors>(arguments, 1);
        UseAll(uses, tensors, At<Shape>(arguments, 0));
        return told;
      },
      [kernel](const Grid& grid, void* const* arguments, const Views& views) {
        Uses uses(views);
        const auto& shape = At<Shape>(arguments, 0);
        auto tensors = At<Tensors>(arguments, 1);
        UseAll(uses, tensors, shape);
        RunGrid(grid, [&] { kernel(shape, tensors); });
      }};
}
}  // namespace

#define SLUICE_FORM(name) \
  { #name, Form(name) }

const KernelForm* TokenForm(std::string_view name) {
  static const std::map<std::string_view, KernelForm> forms = {
      SLUICE_FORM(sluice_rms_norm_fp32),
      SLUICE_FORM(sluice_rms_norm_bf16),
      SLUICE_FORM(sluice_rms_norm_backward_fp32),
      SLUICE_FORM(sluice_rms_norm_backward_bf16),
      SLUICE_FORM(sluice_rope_fp32),
      SLUICE_FORM(sluice_rope_bf16),
      SLUICE_FORM(sluice_rope_fp32_to_bf16),
      SLUICE_FORM(sluice_swiglu_fp32),
      SLUICE_FORM(sluice_swiglu_bf16),
      SLUICE_FORM(sluice_swiglu_backward_fp32),
      SLUICE_FORM(sluice_swiglu_backward_bf16),
      SLUICE_FORM(sluice_softmax_gradient_fp32),
      SLUICE_FORM(sluice_softmax_gradient_bf16)};
  const auto form = forms.find(name);
  return form == forms.end() ? nullptr : &form->second;
}

}  // namespace sluice::fake_cuda
