// Functions of libtorch_cuda.so that are no kernels: making tensors in torch's
// CUDA allocator, views, and copies to and from the host.
//
// A copy behaves as torch's own is assumed to (the wheel has no code of it):
// types and strides are changed before or after it, so that the copy itself is
// one cudaMemcpyAsync, and the caller waits unless the copy is non_blocking.
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <optional>

#include "tests/fake_cuda/torch/kernel.h"

// Exported by libc10_cuda.so, but declared in no header of the wheel.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*has)(DeviceIndex));
}

namespace sluice::fake_cuda {
namespace {

constexpr c10::DispatchKeySet kCuda(c10::DispatchKey::CUDA);

c10::Allocator* Allocator() { return c10::cuda::CUDACachingAllocator::get(); }

// torch's allocators use the current device.
c10::cuda::OptionalCUDAGuard On(std::optional<at::Device> device) {
  return c10::cuda::OptionalCUDAGuard(
      device && device->has_index() ? device : std::nullopt);
}

at::Tensor Empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<at::Device> device,
                 std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const auto guard = On(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), Allocator(),
                                   kCuda, c10::dtype_or_default(type), format);
}

at::Tensor EmptyStrided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                        std::optional<at::ScalarType> type,
                        std::optional<at::Layout>,
                        std::optional<at::Device> device, std::optional<bool>) {
  const auto guard = On(device);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
      Allocator(), kCuda, c10::dtype_or_default(type));
}

at::Tensor AsStrided(const at::Tensor& self, c10::SymIntArrayRef sizes,
                     c10::SymIntArrayRef strides,
                     std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
      offset ? std::optional(offset->expect_int()) : std::nullopt);
}

at::Tensor View(const at::Tensor& self, c10::SymIntArrayRef sizes) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(sizes));
}

at::Tensor ReshapeAlias(const at::Tensor& self, c10::SymIntArrayRef sizes,
                        c10::SymIntArrayRef strides) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(sizes),
                                    C10_AS_INTARRAYREF_SLOW(strides));
}

const at::Tensor& Resize(const at::Tensor& self, c10::SymIntArrayRef symbolic,
                         std::optional<at::MemoryFormat>) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(symbolic);
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  const size_t wanted =
      static_cast<size_t>(self.numel() + self.storage_offset()) *
      self.element_size();
  c10::Storage storage = self.storage();
  if (storage.nbytes() >= wanted) return self;
  TORCH_CHECK(storage.nbytes() == 0,
              "resize_ of a tensor with content is not implemented here");
  const auto guard = On(self.device());
  storage.set_data_ptr_noswap(Allocator()->allocate(wanted));
  storage.set_nbytes(wanted);
  return self;
}

void Memcpy(const at::Tensor& to, const at::Tensor& from,
            const at::Tensor& on_gpu, bool non_blocking) {
  const c10::cuda::CUDAGuard guard(on_gpu.device());
  const auto stream = c10::cuda::getCurrentCUDAStream(on_gpu.get_device());
  C10_CUDA_CHECK(cudaMemcpyAsync(to.data_ptr(), from.const_data_ptr(),
                                 to.nbytes(), cudaMemcpyDefault, stream));
  if (!non_blocking) C10_CUDA_CHECK(cudaStreamSynchronize(stream));
}

at::Tensor& CopyOnGpu(at::Tensor& to, const at::Tensor& from) {
  Launch("copy_", {from}, {to},
         [](const Tensors& reads, const Tensors& writes) {
           writes[0].copy_(reads[0]);
         });
  return to;
}

at::Tensor& Copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (to.numel() == 0) return to;
  if (IsOnGpu(to) && IsOnGpu(from)) {
    return CopyOnGpu(to, from);
  }
  const at::Tensor source =
      from.to(to.scalar_type()).expand_as(to).contiguous();
  at::Tensor target =
      to.is_contiguous() ? to : at::empty(to.sizes(), to.options());
  // A temporary tensor is freed at the return, so the copy must be done by
  // then.
  const bool temporary =
      source.const_data_ptr() != from.const_data_ptr() || !target.is_same(to);
  Memcpy(target, source, IsOnGpu(to) ? to : from, non_blocking && !temporary);
  if (!target.is_same(to)) to.copy_(target);
  return to;
}

// torch reads the value into pinned memory of its own, and waits.
at::Scalar Item(const at::Tensor& self) {
  const at::Tensor host = at::empty({}, self.options().device(at::kCPU));
  void* const bytes = host.data_ptr();
  Launch("item", {self}, {}, [bytes](const Tensors& reads, const Tensors&) {
    std::memcpy(bytes, reads[0].const_data_ptr(), reads[0].nbytes());
  });
  C10_CUDA_CHECK(cudaStreamSynchronize(
      c10::cuda::getCurrentCUDAStream(self.get_device())));
  return host.item();
}

void RecordStream(at::Tensor& self, at::Stream stream) {
  c10::cuda::CUDACachingAllocator::recordStream(
      self.storage().data_ptr(),
      c10::cuda::CUDAStream::unpack3(stream.id(), stream.device_index(),
                                     stream.device_type()));
}

// Tells c10 which GPUs have a context, as the real libtorch_cuda.so does when
// it is loaded, so that a guard that returns to a GPU makes no context there.
[[maybe_unused]] const bool kLoaded = [] {
  c10::cuda::_internal::setHasPrimaryContext(
      [](c10::DeviceIndex device) { return fake_cuda_has_context(device); });
  return true;
}();

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", Empty);
  m.impl("empty_strided", EmptyStrided);
  m.impl("as_strided", AsStrided);
  m.impl("view", View);
  m.impl("_reshape_alias", ReshapeAlias);
  m.impl("resize_", Resize);
  m.impl("copy_", Copy);
  m.impl("_local_scalar_dense", Item);
  m.impl("record_stream", RecordStream);
}

}  // namespace
}  // namespace sluice::fake_cuda
