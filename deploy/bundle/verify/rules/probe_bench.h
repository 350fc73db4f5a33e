// The equipment of a probe: the driver's functions, a context, a stream and
// memory. A failure of these functions ends the process with one line, because
// the rule could then not be tested.
//
// Thread safety: one thread.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/device/cuda/library.h"

namespace sluice::verify {

inline constexpr size_t kPage = 4096;

class ProbeBench {
 public:
  struct Piece {
    device::cuda::DevicePointer address = 0;
    size_t size = 0;
  };

  // Opens the first GPU and makes its context current.
  ProbeBench();
  ProbeBench(const ProbeBench&) = delete;

  const device::cuda::Functions& f() const { return library_->functions(); }
  device::cuda::Device device() const { return device_; }
  device::cuda::Context context() const { return context_; }
  device::cuda::StreamPointer stream() const { return stream_; }
  size_t granularity() const { return granularity_; }

  // Create allocates GPU memory, Reserve addresses. `units`: of the
  // granularity.
  device::cuda::MemoryHandle Create(size_t units);
  device::cuda::DevicePointer Reserve(size_t units);
  // Mapped returns at least `bytes` of mapped GPU memory without access rights,
  // OnGpu with them.
  Piece Mapped(size_t bytes);
  Piece OnGpu(size_t bytes);
  std::byte* Pages(size_t bytes);   // pageable memory, written once
  std::byte* Pinned(size_t bytes);  // registered with the driver
  device::cuda::EventPointer NewEvent();
  device::cuda::Kernel MergeKernel();  // for fp32 (kernels/ops/merge.cu)
  device::cuda::StreamPointer StreamOfSecondGpu();
  device::cuda::Result CopyToGpu(device::cuda::DevicePointer to,
                                 std::byte* from, size_t size);

  void Must(device::cuda::Result result, const char* what) const;
  [[noreturn]] void GiveUp(const char* why) const;

 private:
  std::unique_ptr<device::cuda::LoadedLibrary> library_;
  device::cuda::Device device_ = 0;
  device::cuda::Context context_ = nullptr;
  device::cuda::StreamPointer stream_ = nullptr;
  size_t granularity_ = 0;
};

}  // namespace sluice::verify
