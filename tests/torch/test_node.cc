#include "tests/torch/test_node.h"

#include <ATen/core/Tensor.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>

#include "client/torch/backend/cuda_backend.h"
#include "client/torch/memory/torch_cuda.h"
#include "client/torch/run/rank_memory.h"
#include "gtest/gtest.h"
#include "kernels/device/sim/sim.h"
#include "proto/base/status.h"
#include "tests/support/status_matchers.h"

namespace sluice::runtime {
namespace {

using ::sluice::testing::IsOk;

constexpr Bytes kGuard = KiB(4);
constexpr Bytes kMostHbm = GiB(2);
const at::Device kGpu(at::kCUDA, 0);

template <typename T>
T Need(absl::StatusOr<T> value) {
  if (!value.ok())
    std::fprintf(stderr, "%s\n", value.status().message().data());
  SLUICE_CHECK(value.ok());
  return *std::move(value);
}

stream::AttentionKernel AskedKernel() {
  const char* const asked = std::getenv("SLUICE_TEST_ATTENTION");
  for (const stream::AttentionKernel kernel : stream::kAskedKernels) {
    if (asked == nullptr || std::string_view(asked) == stream::Name(kernel)) {
      return kernel;
    }
  }
  SLUICE_CHECK(false);
}

// Returns the size of the region: all of a fake GPU's memory, and so much of a
// real GPU's that cuBLAS workspaces of about 32 MiB per rank's thread fit
// (client/torch/run/rank_memory.h).
Bytes HbmOf(device::Driver& driver) {
  const auto gpu = device::Placement::Gpu(DeviceIndex(0));
  return std::min(kMostHbm, Need(driver.Usage(gpu)).total);
}

// GPU 0 as a rank uses it: a region as torch's memory, and the backend.
class RanksGpu {
 public:
  RanksGpu()
      : driver_(Need(device::OpenCudaDriver())),
        backend_(Need(OpenCudaBackend(driver_.get(), kGpu, AskedKernel()))),
        stream_(LoadedTorchCuda()->CurrentStream(0)),
        size_(HbmOf(*driver_)),
        hbm_(Need(device::Mapped::Create(
            driver_.get(), device::Placement::Gpu(DeviceIndex(0)), size_))),
        allocator_(kGpu, hbm_->address(), size_) {
    allocator_.Arm();
    allocator_.TimeSegmentsOn(
        driver_.get(), Need(driver_->AdoptStream(DeviceIndex(0), stream_)));
  }
  ~RanksGpu() {
    EXPECT_THAT(
        driver_->SynchronizeStream(driver_->ComputeStream(DeviceIndex(0))),
        IsOk());
    DropWorkspaces(kGpu);
    EXPECT_EQ(allocator_.stats().used, Bytes(0));
    allocator_.Disarm();
  }
  device::Driver* driver() const { return driver_.get(); }
  void* stream() const { return stream_; }
  RegionAllocator& allocator() { return allocator_; }

 private:
  std::unique_ptr<device::Driver> driver_;
  std::unique_ptr<Backend> backend_;
  void* const stream_;
  const Bytes size_;
  const std::unique_ptr<device::Mapped> hbm_;
  RegionAllocator allocator_;
};

// Releases the GPU before the process ends: the fake reports what is left.
class Gpu : public ::testing::Environment {
 public:
  static RanksGpu& Get() { return *gpu_; }
  void SetUp() override {
    if (!OnCuda()) return;
    ChooseWorkspaceSize();
    gpu_ = std::make_unique<RanksGpu>();
  }
  void TearDown() override { gpu_.reset(); }

 private:
  static inline std::unique_ptr<RanksGpu> gpu_;
};
[[maybe_unused]] const auto* const environment =
    ::testing::AddGlobalTestEnvironment(new Gpu);

std::byte* OnHeap(Bytes size) {
  return static_cast<std::byte*>(
      std::aligned_alloc(64, RoundUp(size + kGuard, Bytes(64)).size()));
}

class ThroughHost final : public Collectives {
 public:
  explicit ThroughHost(Collectives* host) : host_(host) {}
  // A rank's collectives must be issued by one thread.
  void ExpectOneThread() const {
    EXPECT_EQ(std::this_thread::get_id(), thread_);
  }

  int rank() const override { return host_->rank(); }
  int world_size() const override { return host_->world_size(); }
  absl::Status AllToAll(const at::Tensor& receive,
                        const std::vector<int64_t>& receive_counts,
                        const at::Tensor& send,
                        const std::vector<int64_t>& send_counts) override {
    ExpectOneThread();
    at::Tensor got = receive.cpu();
    SLUICE_RETURN_IF_ERROR(
        host_->AllToAll(got, receive_counts, send.cpu(), send_counts));
    receive.copy_(got);
    return absl::OkStatus();
  }
  absl::Status SumAll(at::Tensor& tensor) override {
    return Through(tensor, [&](at::Tensor& t) { return host_->SumAll(t); });
  }
  absl::Status SumTo(at::Tensor& tensor, int root) override {
    return Through(tensor,
                   [&](at::Tensor& t) { return host_->SumTo(t, root); });
  }
  absl::Status Broadcast(at::Tensor& tensor, int root) override {
    return Through(tensor,
                   [&](at::Tensor& t) { return host_->Broadcast(t, root); });
  }
  absl::Status Barrier() override { return host_->Barrier(); }
  absl::Status Check() override { return host_->Check(); }
  void Abort(const std::string& why) override { host_->Abort(why); }

 private:
  template <typename Call>
  absl::Status Through(at::Tensor& tensor, Call call) {
    ExpectOneThread();
    at::Tensor there = tensor.cpu();
    SLUICE_RETURN_IF_ERROR(call(there));
    tensor.copy_(there);
    return absl::OkStatus();
  }

  Collectives* const host_;
  const std::thread::id thread_ = std::this_thread::get_id();
};

}  // namespace

bool OnCuda() {
  const char* const device = std::getenv("SLUICE_TEST_DEVICE");
  return device != nullptr && std::string_view(device) == "cuda";
}

at::Device TestDevice() { return OnCuda() ? kGpu : at::Device(at::kCPU); }

// The program is not linked to the fake, so the fake's functions are looked up.
std::string TakeFindings() {
  using Take = void (*)(std::string&);
  static const auto take =
      reinterpret_cast<Take>(dlsym(RTLD_DEFAULT, "fake_cuda_take_findings"));
  SLUICE_CHECK(take != nullptr);
  std::string findings;
  take(findings);
  return findings;
}

long PageableCopies() {
  using Count = long (*)();
  static const auto count =
      reinterpret_cast<Count>(dlsym(RTLD_DEFAULT, "fake_cuda_pageable_copies"));
  return count == nullptr ? 0 : count();
}

TestNode::TestNode(int gpus, double in_speed, double out_speed) {
  if (OnCuda()) {
    driver_ = Gpu::Get().driver();
    return;
  }
  device::SimConfig node{.links = {{"pcie0", in_speed, out_speed}},
                         .host_memory = MiB(1)};
  node.gpus.assign(gpus, {MiB(1), "pcie0", NumaIndex(0)});
  directory_.emplace();
  EXPECT_THAT(device::CreateSimNode(directory_->path(), node), IsOk());
  sim_ = Need(device::OpenSimDriver(directory_->path()));
  driver_ = sim_.get();
}

RegionAllocator* TestNode::hbm() const {
  return OnCuda() ? &Gpu::Get().allocator() : nullptr;
}

void TestNode::EnterRank() const {
  if (OnCuda()) {
    LoadedTorchCuda()->SetCurrentStream(0, Gpu::Get().stream());
  }
}

absl::StatusOr<std::unique_ptr<client::CopyEngine>> TestNode::StartCopies(
    int rank, Bytes slice) const {
  const DeviceIndex gpu(OnCuda() ? 0 : rank);
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<client::CopyEngine> copies,
      client::CopyEngine::Start(
          {.driver = driver_, .device = gpu, .slice = slice}));
  if (OnCuda()) {
    SLUICE_RETURN_IF_ERROR(copies->UseStream(Gpu::Get().stream()));
  }
  return copies;
}

std::unique_ptr<Collectives> TestNode::CollectivesOver(
    Collectives* host) const {
  return OnCuda() ? std::make_unique<ThroughHost>(host) : nullptr;
}

Arena::Arena(Bytes size)
    : size_(size), heap_(OnHeap(size)), data_(heap_.get()) {
  Begin();
}

Arena::Arena(Bytes size, const TestNode& node) : size_(size) {
  if (OnCuda()) {
    const auto where = device::Placement::Host(NumaIndex(0));
    pinned_ = Need(device::Mapped::Create(
        node.driver(), where,
        RoundUp(size + kGuard, Need(node.driver()->Granularity(where)))));
    data_ = pinned_->address();
  } else {
    heap_.reset(OnHeap(size));
    data_ = heap_.get();
  }
  Begin();
}

void Arena::Begin() {
  std::fill_n(data_, (size_ + kGuard).size(), std::byte{0xff});
}

bool Arena::GuardIntact() const {
  return std::all_of(data_ + size_.size(), data_ + (size_ + kGuard).size(),
                     [](std::byte b) { return b == std::byte{0xff}; });
}

}  // namespace sluice::runtime
