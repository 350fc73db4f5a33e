// Which attention and merge a device has, which token-local kernels, and which
// products of bf16 that are summed in fp32: the one place that knows. All other
// math is ATen's operators, which every device has.
//
// Tensors are in head layout, [rows, heads, dim], lse [heads, rows] in fp32
// (attention_blocks.h); strides are free but for the last dimension. All of a
// call are on the backend's device.
//
// The CPU's is always there. A GPU's needs its driver, so it is there while a
// CudaBackend of that GPU lives (cuda_backend.h).
//
// Throws what ATen throws. Thread safety: pure functions; InstallBackend while
// no thread computes on that GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "kernels/ops/token_math.h"

namespace sluice::runtime {

// Softmax of some queries over some keys, and its log-sum-exp.
struct AttentionResult {
  at::Tensor output, lse;
};

// The queries of a block's backward: with the output and log-sum-exp of their
// whole rows.
struct QueryRows {
  at::Tensor q, output_gradient, output, lse;
};
// Those of attention's inputs, shaped as they are.
struct AttentionGradients {
  at::Tensor q, k, v;
};

// A function of kernels/ops/token_math with its tensors.
template <typename ShapeOf, typename TensorsOf>
struct TokenCall {
  using Shape = ShapeOf;
  using Tensors = TensorsOf;
  Shape shape;
  Tensors tensors;
};
template <typename T>
using RmsNormCall = TokenCall<ops::RmsNormShape, ops::RmsNormTensors<T>>;
template <typename T>
using RmsNormBackwardCall =
    TokenCall<ops::RmsNormShape, ops::RmsNormGradients<T>>;
template <typename In, typename Out>
using RopeCall = TokenCall<ops::RopeShape, ops::RopeTensors<In, Out>>;
template <typename T>
using SwigluCall = TokenCall<ops::SwigluShape, ops::SwigluTensors<T>>;
template <typename T>
using SwigluBackwardCall = TokenCall<ops::SwigluShape, ops::SwigluGradients<T>>;
template <typename T>
using SoftmaxCall = TokenCall<ops::SoftmaxShape, ops::SoftmaxTensors<T>>;
using TokenMath =
    std::variant<RmsNormCall<float>, RmsNormCall<ops::BFloat16>,
                 RmsNormBackwardCall<float>, RmsNormBackwardCall<ops::BFloat16>,
                 RopeCall<float, float>, RopeCall<ops::BFloat16, ops::BFloat16>,
                 RopeCall<float, ops::BFloat16>, SwigluCall<float>,
                 SwigluCall<ops::BFloat16>, SwigluBackwardCall<float>,
                 SwigluBackwardCall<ops::BFloat16>, SoftmaxCall<float>,
                 SoftmaxCall<ops::BFloat16>>;

// Gradients of a linear layer: of its output, in its input's dtype, and the
// fp32 sums of its weight [out, in] and bias; an undefined bias is none.
struct LinearGradients {
  const at::Tensor& output;
  at::Tensor& weight;
  at::Tensor& bias;
};

class Backend {
 public:
  struct Traits {
    const char* name;
    // Blocks are computed in fp32 whatever the model's dtype: the attention of
    // this device would round a bf16 block's output before it is merged.
    bool blocks_in_fp32;
    // A causal block of more rows is cut in halves, whole tiles of so many
    // rows, because the device would compute most of what lies above the
    // diagonal; 0: it does not.
    int64_t causal_rows, tile_rows;
  };

  explicit Backend(const Traits& traits) : traits_(traits) {}
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  const Traits& traits() const { return traits_; }

  // Unimplemented: it has no attention of this dtype or head size, in one line.
  virtual absl::Status Check(at::ScalarType type, int64_t head_dim) const = 0;

  // The name, for reports, of what computes attention of this dtype and head
  // size. REQUIRES: Check passed.
  virtual std::string KernelName(at::ScalarType type,
                                 int64_t head_dim) const = 0;

  // Autograd may go through it. Causal: as many rows of k as of q.
  virtual AttentionResult Attend(const at::Tensor& q, const at::Tensor& k,
                                 const at::Tensor& v, bool causal) const = 0;
  virtual AttentionGradients AttendBackward(const QueryRows& queries,
                                            const at::Tensor& k,
                                            const at::Tensor& v,
                                            bool causal) const = 0;
  // (output, lse) becomes the merge of itself and `block` (kernels/ops/merge);
  // what is running in fp32, a block's output as Attend gave it.
  virtual void Merge(const AttentionResult& running,
                     const AttentionResult& block) const = 0;

  // kernels/ops/token_math, of tensors of this device.
  virtual void Compute(const TokenMath& what) const = 0;

  // Adds dY^T X and sum(dY) of linear layers with the same input [rows, in]:
  // products of its dtype, summed in fp32.
  virtual void AddWeightGradients(
      const at::Tensor& x,
      std::initializer_list<LinearGradients> layers) const = 0;

 private:
  const Traits traits_;
};

// Unimplemented: this build, or this process, has no attention on such a
// device, in one line.
absl::StatusOr<const Backend*> FindBackend(at::Device device);
// The same, and of this dtype and head size.
absl::Status CheckBackend(at::Device device, at::ScalarType type,
                          int64_t head_dim);
// The same where only throwing is possible (StatusException): of the device
// that a call's tensors are on.
const Backend& BackendOf(const at::Tensor& tensor);

// A GPU's, from now on (cuda_backend.h, which calls it); null: it has none any
// more.
void InstallBackend(at::Device gpu, const Backend* backend);

}  // namespace sluice::runtime
