// The kernels of each device: attention and its merge, token-local math, and
// bf16 products that are summed in fp32. All other math is ATen's operators.
//
// Attention's tensors are in head layout (attention_blocks.h). All tensors are
// on the backend's device. The CPU's backend always exists, a GPU's while a
// CudaBackend of it lives.
//
// Throws what ATen throws. Thread safety: pure functions; call InstallBackend
// while no thread computes on `gpu`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "kernels/ops/merge.h"
#include "kernels/ops/token_math.h"

namespace sluice::runtime {

struct AttentionResult {
  at::Tensor output, lse;
};

// The queries of a block's backward, with `output` and `lse` over all keys.
struct QueryRows {
  at::Tensor q, output_gradient, output, lse;
};
struct AttentionGradients {
  at::Tensor q, k, v;
};

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

// Gradients of a linear layer: that of its output, in its input's dtype, and
// the fp32 sums for its weight [out, in] and bias (undefined: no bias).
struct LinearGradients {
  const at::Tensor& output;
  at::Tensor& weight;
  at::Tensor& bias;
};

class Backend {
 public:
  struct Traits {
    const char* name;
    // Blocks are computed in fp32 whatever the model's dtype, because this
    // device's attention would round a bf16 block's output before it is merged.
    bool blocks_in_fp32;
    // A causal block of more than `causal_rows` rows is cut in halves, at
    // multiples of `tile_rows`, because the device would compute most of what
    // is above the diagonal. 0: causal blocks are not cut.
    int64_t causal_rows, tile_rows;
  };

  explicit Backend(const Traits& traits) : traits_(traits) {}
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  const Traits& traits() const { return traits_; }

  // Unimplemented: no attention for this dtype or head size.
  virtual absl::Status Check(at::ScalarType type, int64_t head_dim) const = 0;

  // Returns the attention kernel's name, for reports. REQUIRES: Check passed.
  virtual std::string KernelName(at::ScalarType type,
                                 int64_t head_dim) const = 0;

  // Computes attention, which autograd may differentiate. If `causal`, k has as
  // many rows as q.
  virtual AttentionResult Attend(const at::Tensor& q, const at::Tensor& k,
                                 const at::Tensor& v, bool causal) const = 0;
  virtual AttentionGradients AttendBackward(const QueryRows& queries,
                                            const at::Tensor& k,
                                            const at::Tensor& v,
                                            bool causal) const = 0;
  // Merges `block`, which Attend returned, into `running`, which is in fp32.
  virtual void Merge(const AttentionResult& running,
                     const AttentionResult& block) const = 0;

  virtual void Compute(const TokenMath& what) const = 0;

  // Adds dY^T X and sum(dY), summed in fp32, for linear layers with the same
  // input [rows, in].
  virtual void AddWeightGradients(
      const at::Tensor& x,
      std::initializer_list<LinearGradients> layers) const = 0;

 private:
  const Traits traits_;
};

// Unimplemented: this build or process has no attention on such a device.
absl::StatusOr<const Backend*> FindBackend(at::Device device);
absl::Status CheckBackend(at::Device device, at::ScalarType type,
                          int64_t head_dim);
// As FindBackend, for code that can only throw (StatusException).
const Backend& BackendOf(const at::Tensor& tensor);

// --- for backends ------------------------------------------------------------

// Sets a GPU's backend; null removes it.
void InstallBackend(at::Device gpu, const Backend* backend);

// `Batched` turns [rows, heads, dim] into [1, heads, rows, dim], `Flat` back.
inline at::Tensor Batched(const at::Tensor& t) {
  return t.transpose(0, 1).unsqueeze(0);
}
inline at::Tensor Flat(const at::Tensor& t) {
  return t.squeeze(0).transpose(0, 1);
}

inline ops::MergeShape MergeShapeOf(const AttentionResult& running,
                                    const AttentionResult& block) {
  return {.rows = block.output.size(0),
          .heads = block.output.size(1),
          .dim = block.output.size(2),
          .o = {running.output.stride(0), running.output.stride(1)},
          .lse = {running.lse.stride(1), running.lse.stride(0)},
          .block_o = {block.output.stride(0), block.output.stride(1)},
          .block_lse = {block.lse.stride(1), block.lse.stride(0)}};
}

}  // namespace sluice::runtime
