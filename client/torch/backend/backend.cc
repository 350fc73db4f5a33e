#include "client/torch/backend/backend.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <type_traits>

#include "client/torch/exceptions.h"
#include "planner/stream/attention_kernel.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

constexpr size_t kMostGpus = 64;
constinit std::array<std::atomic<const Backend*>, kMostGpus> gpus;

size_t SlotOf(at::Device gpu) {
  const auto index = static_cast<size_t>(gpu.index());
  SLUICE_CHECK(gpu.is_cuda() && gpu.has_index() && index < kMostGpus);
  return index;
}

// ATen's causal kernel computes whole tiles of 512 keys. A causal block of 512
// rows cut at 256 takes 0.79 of the time of an uncut one; cut at 128 it takes
// 0.74, but with three times as many calls and buffers.
constexpr Backend::Traits kCpuTraits = {
    .name = "cpu", .blocks_in_fp32 = true, .causal_rows = 256, .tile_rows = 64};

// --- a token-local function, divided among ATen's threads ------------------
// Returns the number of units to divide: rows, parts of rows, or elements.
int64_t Rows(const ops::RmsNormShape& shape) { return shape.parts(); }
int64_t Rows(const ops::RopeShape& shape) { return shape.rows; }
int64_t Rows(const ops::SwigluShape& shape) { return shape.elements; }
int64_t Rows(const ops::SoftmaxShape& shape) { return shape.rows; }

// The minimum number of elements per thread.
constexpr int64_t kElementsOfThread = int64_t{1} << 15;
template <typename Shape>
int64_t RowsOfThread(const Shape& shape) {
  int64_t row = 1;
  if constexpr (requires { shape.width; }) row = shape.width;
  if constexpr (requires { shape.rows_in_part; }) row *= shape.rows_in_part;
  if constexpr (requires { shape.dim; }) row = shape.heads * shape.dim;
  return std::max<int64_t>(1, kElementsOfThread / std::max<int64_t>(1, row));
}

void Skip(int64_t elements, auto*&... tensors) {
  const auto skip = [elements](auto*& tensor) {
    if (tensor != nullptr) tensor += elements;
  };
  (skip(tensors), ...);
}

// Returns the call for `count` units from `first` on.
template <typename T>
RmsNormCall<T> SomeOf(RmsNormCall<T> call, int64_t first, int64_t count) {
  const int64_t row = first * call.shape.rows_in_part;
  const int64_t rows = count * call.shape.rows_in_part;
  call.shape.rows = std::min(rows, call.shape.rows - row);
  Skip(row * call.shape.width, call.tensors.x, call.tensors.y);
  return call;
}
template <typename T>
RmsNormBackwardCall<T> SomeOf(RmsNormBackwardCall<T> call, int64_t first,
                              int64_t count) {
  const int64_t row = first * call.shape.rows_in_part;
  const int64_t rows = count * call.shape.rows_in_part;
  call.shape.rows = std::min(rows, call.shape.rows - row);
  const int64_t begin = row * call.shape.width;
  for (const T*& dy : call.tensors.dy) Skip(begin, dy);
  Skip(begin, call.tensors.x, call.tensors.residual, call.tensors.dx);
  Skip(first * call.shape.width, call.tensors.weight_gradient);
  return call;
}
template <typename In, typename Out>
RopeCall<In, Out> SomeOf(RopeCall<In, Out> call, int64_t first, int64_t count) {
  const int64_t row = call.shape.heads * call.shape.dim;
  call.shape.rows = count;
  Skip(first * row, call.tensors.x, call.tensors.y);
  Skip(first * (call.shape.dim / 2), call.tensors.cos, call.tensors.sin);
  return call;
}
template <typename T>
SwigluCall<T> SomeOf(SwigluCall<T> call, int64_t first, int64_t count) {
  call.shape.elements = count;
  Skip(first, call.tensors.gate, call.tensors.up, call.tensors.y);
  return call;
}
template <typename T>
SwigluBackwardCall<T> SomeOf(SwigluBackwardCall<T> call, int64_t first,
                             int64_t count) {
  call.shape.elements = count;
  Skip(first, call.tensors.dy, call.tensors.gate, call.tensors.up,
       call.tensors.d_gate, call.tensors.d_up);
  return call;
}
template <typename T>
SoftmaxCall<T> SomeOf(SoftmaxCall<T> call, int64_t first, int64_t count) {
  call.shape.rows = count;
  Skip(first * call.shape.width, call.tensors.logits);
  Skip(first, call.tensors.labels, call.tensors.loss);
  return call;
}

class Cpu final : public Backend {
 public:
  Cpu() : Backend(kCpuTraits) {}

  absl::Status Check(at::ScalarType, int64_t) const override {
    return absl::OkStatus();
  }
  std::string KernelName(at::ScalarType, int64_t) const override {
    return stream::Name(stream::AttentionKernel::kCpuFlash);
  }

  AttentionResult Attend(const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v, bool causal) const override {
    const auto [output, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        Batched(q), Batched(k), Batched(v), /*dropout_p=*/0, causal);
    return {Flat(output), lse.squeeze(0)};
  }

  AttentionGradients AttendBackward(const QueryRows& queries,
                                    const at::Tensor& k, const at::Tensor& v,
                                    bool causal) const override {
    const auto [dq, dk, dv] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            Batched(queries.output_gradient), Batched(queries.q), Batched(k),
            Batched(v), Batched(queries.output), queries.lse.unsqueeze(0),
            /*dropout_p=*/0, causal);
    return {Flat(dq), Flat(dk), Flat(dv)};
  }

  void Merge(const AttentionResult& running,
             const AttentionResult& block) const override {
    ops::MergeAttention(
        MergeShapeOf(running, block), running.output.data_ptr<float>(),
        running.lse.data_ptr<float>(), block.output.const_data_ptr<float>(),
        block.lse.const_data_ptr<float>());
  }

  void Compute(const TokenMath& what) const override {
    std::visit(
        [](const auto& call) {
          using Call = std::remove_cvref_t<decltype(call)>;
          at::parallel_for(0, Rows(call.shape), RowsOfThread(call.shape),
                           [&](int64_t begin, int64_t end) {
                             const Call part = SomeOf(call, begin, end - begin);
                             ops::Compute(part.shape, part.tensors);
                           });
        },
        what);
  }

  // The operands are widened, each once, because ATen's products on the CPU
  // round a sum to the operands' dtype.
  void AddWeightGradients(
      const at::Tensor& x,
      std::initializer_list<LinearGradients> layers) const override {
    const at::Tensor wide = x.to(at::kFloat);
    for (const LinearGradients& layer : layers) {
      const at::Tensor dy = layer.output.to(at::kFloat);
      layer.weight.addmm_(dy.t(), wide);
      if (layer.bias.defined()) layer.bias.add_(at::sum(dy, {0}));
    }
  }
};

}  // namespace

absl::StatusOr<const Backend*> FindBackend(at::Device device) {
  static const Cpu cpu;
  if (device.is_cpu()) return &cpu;
  if (device.is_cuda() && device.has_index()) {
    const Backend* const backend = gpus[SlotOf(device)];
    if (backend != nullptr) return backend;
  }
  return absl::UnimplementedError(fmt::format(
      "this process has no attention on {}: it computes on cpu, which is where "
      "the memory of a simulated GPU is, and on the GPU whose memory it leased",
      device.str()));
}

absl::Status CheckBackend(at::Device device, at::ScalarType type,
                          int64_t head_dim) {
  SLUICE_ASSIGN_OR_RETURN(const Backend* const backend, FindBackend(device));
  return backend->Check(type, head_dim);
}

const Backend& BackendOf(const at::Tensor& tensor) {
  const auto found = FindBackend(tensor.device());
  ThrowIfError(found.status());
  return **found;
}

void InstallBackend(at::Device gpu, const Backend* backend) {
  gpus[SlotOf(gpu)] = backend;
}

}  // namespace sluice::runtime
