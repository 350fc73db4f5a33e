#include "tests/fake_cuda/torch/kernel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <utility>

namespace sluice::fake_cuda {
namespace {

// The race detector gets a tensor of more pieces than this as one range.
constexpr int64_t kMostPieces = 256;

std::atomic<int64_t> looks{0};

struct Dimension {
  int64_t size, stride;
};

// Returns the dimensions with more than one element, the innermost first;
// adjacent dimensions are merged.
std::vector<Dimension> Merged(const at::Tensor& tensor) {
  std::vector<Dimension> dimensions;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) > 0) {
      dimensions.push_back({tensor.size(i), tensor.stride(i)});
    }
  }
  std::sort(dimensions.begin(), dimensions.end(),
            [](auto a, auto b) { return a.stride < b.stride; });
  std::vector<Dimension> merged = {{1, 1}};
  for (const Dimension& next : dimensions) {
    Dimension& last = merged.back();
    if (next.stride == last.size * last.stride) {
      last.size *= next.size;
    } else {
      merged.push_back(next);
    }
  }
  return merged;
}

std::vector<Access> BytesOf(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {Access{}};
  const auto* const start =
      static_cast<const std::byte*>(tensor.const_data_ptr());
  const auto element = static_cast<int64_t>(tensor.element_size());
  const std::vector<Dimension> merged = Merged(tensor);
  int64_t pieces = 1, span = 1;
  for (const Dimension& d : merged) span += (d.size - 1) * d.stride;
  for (size_t i = 1; i < merged.size(); ++i) pieces *= merged[i].size;
  if (pieces > kMostPieces) {
    return {Access{start, static_cast<size_t>(span * element), false}};
  }
  std::vector<Access> accesses;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    int64_t at = 0, rest = piece;
    for (size_t i = 1; i < merged.size(); ++i) {
      at += rest % merged[i].size * merged[i].stride;
      rest /= merged[i].size;
    }
    accesses.push_back({start + at * element,
                        static_cast<size_t>(merged[0].size * element), false});
  }
  return accesses;
}

// The accesses of a launch, and the place of each tensor's bytes among them.
struct Operands {
  std::vector<DeviceView> views;
  std::vector<size_t> first;  // index of each tensor's first access
  std::vector<Access> accesses;

  void Add(const Tensors& tensors, bool writes) {
    for (const at::Tensor& tensor : tensors) {
      views.emplace_back(tensor);
      first.push_back(accesses.size());
      for (Access access : views.back().reads()) {
        access.writes = writes;
        accesses.push_back(access);
      }
    }
  }
  Tensors OnCpu(const Views& bytes, size_t begin, size_t end) const {
    Tensors tensors;
    for (size_t i = begin; i < end; ++i) {
      tensors.push_back(views[i].OnCpu(bytes[first[i]]));
    }
    return tensors;
  }
};

void Run(const std::string& name, const Operands& operands, size_t reads,
         const Views& bytes, const KernelCode& code) {
  const c10::InferenceMode without_autograd;
  try {
    code(operands.OnCpu(bytes, 0, reads),
         operands.OnCpu(bytes, reads, operands.views.size()));
  } catch (const std::exception& error) {
    fake_cuda_find(fmt::format("the CPU form of {}: {}", name, error.what()));
  }
}

}  // namespace

DeviceView::DeviceView(const at::Tensor& tensor)
    : sizes_(tensor.sizes().vec()),
      strides_(tensor.strides().vec()),
      type_(tensor.scalar_type()),
      reads_(BytesOf(tensor)) {}

at::Tensor DeviceView::OnCpu(std::byte* bytes) const {
  const auto options = at::TensorOptions().dtype(type_).device(at::kCPU);
  if (bytes == nullptr) return at::empty(sizes_, options);
  return at::from_blob(bytes, sizes_, strides_, options);
}

void Launch(const std::string& name, const Tensors& reads,
            const Tensors& writes, KernelCode code) {
  const at::Tensor& any = reads.empty() ? writes.at(0) : reads[0];
  for (const Tensors* tensors : {&reads, &writes}) {
    for (const at::Tensor& tensor : *tensors) {
      TORCH_CHECK(tensor.device() == any.device(), name,
                  ": expected all tensors to be on the same device, found ",
                  tensor.device(), " and ", any.device());
    }
  }
  const c10::cuda::CUDAGuard guard(any.device());
  // Makes a context current.
  C10_CUDA_CHECK(cudaSetDevice(any.get_device()));
  const auto stream = c10::cuda::getCurrentCUDAStream(any.get_device());
  const auto operands = std::make_shared<Operands>();
  operands->Add(reads, /*writes=*/false);
  operands->Add(writes, /*writes=*/true);
  const int code_of_cuda = fake_cuda_run(
      stream.stream(), name, operands->accesses,
      [name, operands, count = reads.size(), code = std::move(code)](
          const Views& bytes) { Run(name, *operands, count, bytes, code); });
  C10_CUDA_CHECK(static_cast<cudaError_t>(code_of_cuda));
}

void LaunchAndLook(const std::string& name, const Tensors& reads,
                   const Tensors& writes, KernelCode code) {
  ++looks;
  // In a lost context the work is dropped, and the promise with it.
  auto done = std::make_shared<std::promise<void>>();
  std::future<void> future = done->get_future();
  Launch(name, reads, writes,
         [done = std::move(done), code = std::move(code)](
             const Tensors& read, const Tensors& written) {
           code(read, written);
           done->set_value();
         });
  try {
    future.get();
  } catch (const std::future_error&) {
    TORCH_CHECK(false, name, ": the context is lost");
  }
}

int64_t Looks() { return looks; }

}  // namespace sluice::fake_cuda
