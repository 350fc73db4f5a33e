// Tests torch's CUDA tensors in a region, on the fakes (tests/fake_cuda), with
// the module that a program loads on a GPU. This proves nothing about a GPU.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "client/copy/copy_engine.h"
#include "client/torch/backend/cuda_backend.h"
#include "client/torch/exceptions.h"
#include "client/torch/memory/host_scope.h"
#include "client/torch/memory/region_allocator.h"
#include "client/torch/memory/torch_cuda.h"
#include "client/torch/placement.h"
#include "client/torch/run/rank_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/mapped.h"
#include "tests/fake_cuda/control.h"

namespace sluice::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const at::Device kGpu(at::kCUDA, 0);
constexpr Bytes kSize = MiB(4);

template <typename T>
T Ok(absl::StatusOr<T> value) {
  ThrowIfError(value.status());
  return *std::move(value);
}

std::string Findings() {
  std::string findings;
  fake_cuda::fake_cuda_take_findings(findings);
  return findings;
}

template <typename Body>
std::string Refusal(Body body) {
  const absl::Status status = CatchStatus("it", [&]() -> absl::Status {
    body();
    return absl::OkStatus();
  });
  return std::string(status.message());
}

class RegionFrontTest : public ::testing::Test {
 protected:
  void SetUp() override {
    torch_cuda_ = Ok(LoadTorchCuda());
    driver_ = Ok(device::OpenCudaDriver());
    memory_ = Extent(device::Placement::Gpu(DeviceIndex(0)));
    compute_ = driver_->ComputeStream(DeviceIndex(0));
    c10::cuda::setCurrentCUDAStream(Of(compute_));
    allocator_ =
        std::make_unique<RegionAllocator>(kGpu, memory_->address(), kSize);
    allocator_->Arm();
  }
  void TearDown() override {
    if (allocator_ == nullptr) return;  // SetUp failed
    ThrowIfError(driver_->SynchronizeStream(compute_));
    EXPECT_EQ(allocator_->stats().used, Bytes(0));
    allocator_.reset();
    memory_.reset();
    driver_.reset();
    EXPECT_EQ(Findings(), "");
  }
  std::unique_ptr<device::Mapped> Extent(device::Placement where) {
    return Ok(device::Mapped::Create(driver_.get(), where, kSize));
  }
  c10::cuda::CUDAStream Of(device::Stream stream) const {
    return c10::cuda::getStreamFromExternal(
        static_cast<cudaStream_t>(Ok(driver_->NativeStream(stream))), 0);
  }
  int64_t OffsetOf(const at::Tensor& tensor) const {
    return static_cast<const std::byte*>(tensor.data_ptr()) -
           memory_->address();
  }
  // Enqueues an operation that does nothing for `time`.
  void Sleep(device::Stream stream, std::chrono::milliseconds time) const {
    EXPECT_EQ(fake_cuda::fake_cuda_run(
                  Ok(driver_->NativeStream(stream)), "sleep", {},
                  [time](const auto&) { std::this_thread::sleep_for(time); }),
              0);
  }
  static double Seconds(std::chrono::milliseconds time) {
    return std::chrono::duration<double>(time).count() -
           1e-4;  // the error of clocks
  }
  static at::Tensor Make(Bytes size) {
    return at::empty({size.count()}, On(kGpu, at::kByte));
  }

  TorchCuda* torch_cuda_ = nullptr;
  std::unique_ptr<device::Driver> driver_;
  std::unique_ptr<device::Mapped> memory_;
  device::Stream compute_;
  std::unique_ptr<RegionAllocator> allocator_;
};

TEST_F(RegionFrontTest, TensorsAndResultsOfOperatorsLieInTheRegion) {
  const at::Tensor a = at::full({100, 3}, 2.0, On(kGpu, at::kFloat));
  const at::Tensor b = a + a;
  EXPECT_GE(OffsetOf(a), 0);
  EXPECT_LT(OffsetOf(b), kSize.count());
  EXPECT_NE(OffsetOf(a), OffsetOf(b));
  EXPECT_EQ(allocator_->stats().used,
            Bytes(2 * 1280));       // 1200 bytes, rounded up
  EXPECT_EQ(OffsetOf(a) % 256, 0);  // as cuBLAS requires
  EXPECT_EQ(OffsetOf(b) % 256, 0);
  EXPECT_EQ(b.sum().item<float>(), 1200);
}

TEST_F(RegionFrontTest, OnlyGpuTensorsAreInTheRegionWhateverTheScope) {
  const at::Tensor host = at::ones({1000}, OnHost(at::kFloat));
  EXPECT_EQ(allocator_->stats().used, Bytes(0));
  const HostScope scope("the CPU's");
  const at::Tensor gpu = Make(KiB(1));
  EXPECT_EQ(allocator_->stats().used, KiB(1));
  EXPECT_EQ(allocator_->stats().host_used, Bytes(0));
}

TEST_F(RegionFrontTest, ARecordedSegmentIsReplayedAtItsPlannedOffsets) {
  const auto segment = [this] {
    const SegmentScope scope(allocator_.get(), "s");
    const at::Tensor a = Make(KiB(64));
    const at::Tensor b = Make(KiB(32));
    return std::pair(OffsetOf(a), OffsetOf(b));
  };
  allocator_->RecordSegments(true);
  segment();
  allocator_->RecordSegments(false);
  const auto kinds = allocator_->TakeRecorded();
  ASSERT_EQ(kinds.size(), 1U);
  ASSERT_EQ(kinds[0].trace.buffers.size(), 2U);
  plan::SegmentPlan plan{.name = "s"};
  plan.placement.offsets = {KiB(32), Bytes(0)};
  ASSERT_TRUE(allocator_->SetPlan({plan}, kinds, KiB(96)).ok());
  const auto [a, b] = segment();
  EXPECT_EQ(a - b, KiB(32).count());
  EXPECT_EQ(allocator_->stats().planned_allocations, 2);
  EXPECT_EQ(allocator_->stats().mismatches, 0);
}

TEST_F(RegionFrontTest, AFullRegionReportsTheRequestAndTakesNothing) {
  EXPECT_THAT(Refusal([] { Make(MiB(5)); }),
              AllOf(HasSubstr("out of GPU memory"), HasSubstr("5 MiB")));
  EXPECT_EQ(allocator_->stats().used, Bytes(0));
}

TEST_F(RegionFrontTest, UseOnAnotherStreamIsAnError) {
  const device::Stream other = Ok(driver_->CreateStream(DeviceIndex(0)));
  {
    const at::Tensor tensor = Make(KiB(1));
    tensor.record_stream(Of(compute_));
    EXPECT_THAT(Refusal([&] { tensor.record_stream(Of(other)); }),
                AllOf(HasSubstr("recordStream"), HasSubstr("compute stream")));
    c10::cuda::setCurrentCUDAStream(Of(other));
    EXPECT_THAT(Refusal([] { Make(KiB(1)); }), HasSubstr("compute stream"));
    c10::cuda::setCurrentCUDAStream(Of(compute_));
  }
  ThrowIfError(driver_->DestroyStream(other));
}

TEST_F(RegionFrontTest, UnsupportedAllocatorCallsAreRefused) {
  auto* const torch = c10::cuda::CUDACachingAllocator::get();
  EXPECT_EQ(torch->name(), "sluice");
  EXPECT_THAT(Refusal([&] {
                torch->snapshot({0, 0}, true);
              }),
              HasSubstr("no snapshots"));
  EXPECT_THAT(Refusal([&] { torch->shareIpcHandle(nullptr); }),
              HasSubstr("other processes"));
  const at::Tensor from = at::full({1024}, 7, On(kGpu, at::kByte));
  const at::Tensor to = Make(KiB(1));
  for (const int gpu : {0, 1}) {
    EXPECT_EQ(torch->memcpyAsync(to.data_ptr(), 0, from.data_ptr(), gpu, 1024,
                                 Of(compute_), true),
              gpu == 0 ? cudaSuccess : cudaErrorNotSupported);
  }
}

TEST_F(RegionFrontTest, AfterDisarmTorchHasItsAllocatorAndBlocksStillReturn) {
  auto* const region = c10::cuda::CUDACachingAllocator::get();
  at::Tensor tensor = Make(KiB(1));
  allocator_->Disarm();
  EXPECT_NE(c10::cuda::CUDACachingAllocator::get(), region);
  tensor.reset();
  EXPECT_EQ(allocator_->stats().used, Bytes(0));
  allocator_->Arm();
  EXPECT_EQ(OffsetOf(Make(kSize)), 0);
}

// An init call must also reach torch's own allocator, which otherwise knows of
// no GPU.
TEST_F(RegionFrontTest, TorchsOwnAllocatorIsInitializedToo) {
  c10::cuda::CUDACachingAllocator::get()->init(1);
  allocator_->Disarm();
  EXPECT_TRUE(c10::cuda::CUDACachingAllocator::get()->initialized());
}

// Torch's cuBLAS workspaces must not outlive the lease in which they lie.
TEST_F(RegionFrontTest, CublasWorkspacesAreGivenBack) {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":1024:1", 1);
  fake_cuda::fake_cuda_set("cublas=1");
  TakeWorkspaces(kGpu);
  EXPECT_EQ(allocator_->stats().used, MiB(1));
  DropWorkspaces(kGpu);
  EXPECT_EQ(allocator_->stats().used, Bytes(0));
  fake_cuda::fake_cuda_set("cublas=0");
}

// The backend's stream ends with the driver.
TEST_F(RegionFrontTest, ABackendThatEndsResetsTorchsStream) {
  allocator_->Disarm();
  torch_cuda_->SetCurrentStream(0, nullptr);
  auto backend = OpenCudaBackend(driver_.get(), kGpu);
  if (absl::IsUnimplemented(backend.status())) {
    GTEST_SKIP() << backend.status().message();  // a build without CUDA
  }
  ASSERT_TRUE(backend.ok()) << backend.status().message();
  EXPECT_NE(torch_cuda_->CurrentStream(0), nullptr);
  backend->reset();
  EXPECT_EQ(torch_cuda_->CurrentStream(0), nullptr);
}

TEST_F(RegionFrontTest, AMergeOnAGpuThatFailsThrowsItsError) {
  auto backend = OpenCudaBackend(driver_.get(), kGpu);
  if (absl::IsUnimplemented(backend.status())) {
    GTEST_SKIP() << backend.status().message();  // a build without CUDA
  }
  ASSERT_TRUE(backend.ok()) << backend.status().message();
  fake_cuda::fake_cuda_set("fail=cuCtxPushCurrent_v2:1:1");
  EXPECT_THAT(Refusal([&] { (*backend)->Merge({}, {}); }),
              HasSubstr("cuCtxPushCurrent"));
}

// In builds that poison, a deleter fills memory, and a throw there would end
// the process.
TEST_F(RegionFrontTest, AFillThatFailsThrowsNothing) {
  const at::Tensor tensor = Make(KiB(1));
  fake_cuda::fake_cuda_set("fail=cuMemsetD8Async:1:1");
  EXPECT_EQ(Refusal([&] { torch_cuda_->Fill(tensor.data_ptr(), 0, 1024); }),
            "");
}

// Without UseStream the engine marks a stream on which torch does not compute,
// and the race detector finds a race of copy and kernel.
TEST_F(RegionFrontTest, CopiesAreInOrderWithTorchsCurrentStream) {
  const auto host = Extent(device::Placement::Host(NumaIndex(0)));
  const device::Stream own = Ok(driver_->CreateStream(DeviceIndex(0)));
  allocator_->Disarm();
  c10::cuda::setCurrentCUDAStream(Of(own));
  allocator_->Arm();
  {
    const auto copies = Ok(client::CopyEngine::Start(
        {.driver = driver_.get(), .device = DeviceIndex(0)}));
    ThrowIfError(copies->UseStream(torch_cuda_->CurrentStream(0)));
    const at::Tensor tensor = Make(MiB(1));
    tensor.fill_(7);
    copies->Enqueue({device::CopyDirection::kDeviceToHost,
                     {{host->address(),
                       static_cast<std::byte*>(tensor.data_ptr()), MiB(1)}},
                     {copies->MarkCompute()},
                     "out"});
    ThrowIfError(copies->Drain());
    EXPECT_EQ(host->address()[MiB(1).count() - 1], std::byte{7});
  }
  ThrowIfError(driver_->SynchronizeStream(own));
  allocator_->Disarm();
  c10::cuda::setCurrentCUDAStream(Of(compute_));
  ThrowIfError(driver_->DestroyStream(own));
}

// The host's clock would give only the time of issuing.
TEST_F(RegionFrontTest, ASegmentTakesAsLongAsItsOperations) {
  constexpr auto kLong = std::chrono::milliseconds(1000);
  constexpr auto kShort = std::chrono::milliseconds(20);
  allocator_->TimeSegmentsOn(driver_.get(), compute_);
  allocator_->RecordTimeline(true);
  allocator_->RecordSegments(true);
  const device::CallCounters before = driver_->counters();
  Sleep(compute_, kLong);  // in no segment
  for (const auto slept : {kLong, kShort}) {
    const SegmentScope scope(allocator_.get(), "busy");
    Sleep(compute_, slept);
  }
  { const SegmentScope scope(allocator_.get(), "idle"); }
  const device::CallCounters after = driver_->counters();
  EXPECT_EQ(after.event_synchronize, before.event_synchronize);
  EXPECT_EQ(after.stream_synchronize, before.stream_synchronize);
  const auto kinds = allocator_->TakeRecorded();
  EXPECT_TRUE(allocator_->times_fault().ok());
  ASSERT_EQ(kinds.size(), 2U);
  EXPECT_EQ(kinds[0].executions, 2);
  EXPECT_GE(kinds[0].seconds, Seconds(kShort));  // the shortest run
  EXPECT_LT(kinds[0].seconds, Seconds(kLong));
  EXPECT_LT(kinds[1].seconds, Seconds(kLong));
  const auto runs = allocator_->TakeRuns();
  ASSERT_EQ(runs.size(), 3U);
  EXPECT_GE(runs[0].end_s - runs[0].start_s, Seconds(kLong));
  for (size_t i = 1; i < runs.size(); ++i) {
    EXPECT_GE(runs[i].start_s, runs[i - 1].end_s - 1e-5);
  }
}

// `Wait` only enqueues a wait, and returns long before the copy ends.
TEST_F(RegionFrontTest, AStreamsStallIsCountedByItsOwnClock) {
  constexpr auto kLate = std::chrono::milliseconds(1000);
  const absl::Time start = absl::Now();
  const auto host = Extent(device::Placement::Host(NumaIndex(0)));
  const device::Stream slow = Ok(driver_->CreateStream(DeviceIndex(0)));
  {
    const auto copies = Ok(client::CopyEngine::Start(
        {.driver = driver_.get(), .device = DeviceIndex(0)}));
    Sleep(slow, kLate);
    ThrowIfError(copies->UseStream(Ok(driver_->NativeStream(slow))));
    const client::Ticket late = copies->MarkCompute();
    ThrowIfError(copies->UseStream(Ok(driver_->NativeStream(compute_))));
    const client::Ticket copied =
        copies->Enqueue({device::CopyDirection::kHostToDevice,
                         {{memory_->address(), host->address(), MiB(1)}},
                         {late},
                         "in"});
    ThrowIfError(copies->Wait(copied));
    ThrowIfError(copies->Wait(copied));  // `copied` is reached by then
    ThrowIfError(driver_->SynchronizeStream(compute_));
    const absl::Duration stall = copies->stats().stall;
    EXPECT_GE(stall, absl::FromChrono(kLate) / 10);
    EXPECT_LE(stall, absl::Now() - start);
  }
  ThrowIfError(driver_->DestroyStream(slow));
}

}  // namespace
}  // namespace sluice::runtime
