// Fixture of kernel tests on GPU 0. Without a CUDA driver the test is skipped,
// with the reason. Tensors lie one after another with guards between them, and
// a kernel may write only its results.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/driver.h"
#include "tests/conformance/mapped.h"
#include "tests/support/status_matchers.h"

namespace sluice::ops {

// `Kernels` is MergeKernel or TokenKernels.
template <typename Kernels>
class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    auto driver = device::OpenCudaDriver();
    if (!driver.ok()) GTEST_SKIP() << "cuda: " << driver.status().message();
    driver_ = *std::move(driver);
    const device::Placement gpu = device::Placement::Gpu(DeviceIndex(0));
    const Bytes size = RoundUp(MiB(64), *driver_->Granularity(gpu));
    auto memory = device::Mapped::Create(driver_.get(), gpu, size);
    ASSERT_THAT(memory, sluice::testing::IsOk());
    memory_ = *std::move(memory);
    auto kernels = Kernels::Load(driver_.get());
    ASSERT_THAT(kernels, sluice::testing::IsOk());
    kernels_ = std::make_unique<Kernels>(*kernels);
  }

  // Appends `values` to the image of the GPU's memory. Returns the values'
  // address on the GPU.
  template <typename T>
  T* Lay(const std::vector<T>& values) {
    const size_t at = laid_.size() + kGuard;
    const size_t size = values.size() * sizeof(T);
    laid_.resize(
        RoundUp(Bytes(static_cast<int64_t>(at + size)), Bytes(kGuard)).size() +
            kGuard,
        kGuardByte);
    std::memcpy(laid_.data() + at, values.data(), size);
    return reinterpret_cast<T*>(memory_->address() + at);
  }

  // Copies the image to the GPU, launches, waits, and copies the memory back.
  template <typename... Arguments>
  void Launch(Arguments... arguments) {
    EXPECT_THAT(device::CopyNow(*driver_, memory_->address(), laid_.data(),
                                Bytes(std::ssize(laid_)),
                                device::CopyDirection::kHostToDevice),
                sluice::testing::IsOk());
    const auto stream = driver_->CreateStream(DeviceIndex(0));
    EXPECT_THAT(stream, sluice::testing::IsOk());
    EXPECT_THAT(kernels_->Launch(arguments..., *stream),
                sluice::testing::IsOk());
    EXPECT_THAT(driver_->SynchronizeStream(*stream), sluice::testing::IsOk());
    EXPECT_THAT(driver_->DestroyStream(*stream), sluice::testing::IsOk());
    now_.resize(laid_.size());
    EXPECT_THAT(device::CopyNow(*driver_, now_.data(), memory_->address(),
                                Bytes(std::ssize(now_)),
                                device::CopyDirection::kDeviceToHost),
                sluice::testing::IsOk());
  }

  // Reads a result from `place`, where the kernel was allowed to write.
  template <typename T>
  void Take(const T* place, std::vector<T>& values) {
    const auto at = static_cast<size_t>(
        reinterpret_cast<const std::byte*>(place) - memory_->address());
    const size_t size = values.size() * sizeof(T);
    std::memcpy(values.data(), now_.data() + at, size);
    std::memcpy(laid_.data() + at, now_.data() + at, size);
  }

  // Expects that the guards and the kernel's inputs are unchanged. Clears the
  // image.
  void ExpectRestAsLaid() {
    const auto [was, is] = std::ranges::mismatch(laid_, now_);
    if (was != laid_.end()) {
      ADD_FAILURE() << "the kernel wrote outside its results: byte "
                    << was - laid_.begin() << " of " << laid_.size();
    }
    laid_.clear();
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr std::byte kGuardByte{0xa5};

  std::unique_ptr<device::Driver> driver_;
  std::unique_ptr<device::Mapped> memory_;
  std::unique_ptr<Kernels> kernels_;
  // Content of the memory on the GPU before and after the launch.
  device::Content laid_, now_;
};

}  // namespace sluice::ops
