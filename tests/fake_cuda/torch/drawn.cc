#include "tests/fake_cuda/torch/drawn.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

#include "proto/base/mutex.h"
#include "tests/fake_cuda/torch/kernel.h"

namespace sluice::fake_cuda {
namespace {

// CUDA's dropout; autograd keeps its mask.
std::tuple<at::Tensor, at::Tensor> NativeDropout(const at::Tensor& x, double p,
                                                 std::optional<bool> train) {
  const bool draws = train.value_or(true);
  const double keep = draws ? 1 - p : 1;
  at::Tensor y = at::empty_like(x), mask = at::empty_like(x, at::kBool);
  const at::Generator from =
      draws ? Drawn(x.device(), std::nullopt) : at::Generator();
  Launch(
      "native_dropout", {x}, {y, mask},
      [keep, from](const Tensors& reads, const Tensors& writes) {
        if (from.defined()) {
          writes[1].bernoulli_(keep, from);
        } else {
          writes[1].fill_(true);
        }
        writes[0].copy_(reads[0].mul(writes[1]).mul_(keep == 0 ? 0 : 1 / keep));
      });
  return {y, mask};
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) { m.impl("native_dropout", NativeDropout); }

}  // namespace

at::Generator Drawn(at::Device device, std::optional<at::Generator> given) {
  at::Generator gpus = given && given->defined()
                           ? *given
                           : at::globalContext().defaultGenerator(device);
  static Mutex mutex;  // autograd's thread draws, too
  const MutexLock lock(mutex);
  const uint64_t offset = gpus.get_offset();
  gpus.set_offset(offset + 4);  // Philox's offsets are multiples of 4
  // The CPU generator uses the low 32 bits of a seed.
  return at::detail::createCPUGenerator(gpus.current_seed() +
                                        (offset + 1) * 0x9E3779B1);
}

}  // namespace sluice::fake_cuda
