// Tests the trainer's use of CUDA tensors on the fakes (tests/fake_cuda), which
// end the process if the CPU touches a GPU's memory. This proves nothing about
// a real GPU. If NVIDIA's driver is found, the tests run on it, without checks
// of waits and pageable copies, which only the fake counts.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "client/torch/math/token_math.h"
#include "client/torch/memory/region_allocator.h"
#include "client/torch/memory/torch_cuda.h"
#include "client/torch/placement.h"
#include "client/torch/run/host_stage.h"
#include "client/torch/run/rank_memory.h"
#include "client/train/checkpoint/checkpoint.h"
#include "client/train/checkpoint/checkpoint_files.h"
#include "client/train/optimizer/adamw.h"
#include "kernels/device/driver.h"
#include "tests/conformance/mapped.h"
#include "tests/fake_cuda/control.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

// These functions are undefined if NVIDIA's driver is found.
namespace sluice::fake_cuda {
extern "C" [[gnu::weak]] long fake_cuda_calls(const char* function);
extern "C" [[gnu::weak]] long fake_cuda_pageable_copies();
extern "C" [[gnu::weak]] void fake_cuda_take_findings(std::string& findings);
}  // namespace sluice::fake_cuda

namespace sluice::train {
namespace {

using runtime::HostStage;
using ::sluice::testing::IsOk;
using ::sluice::testing::TempDir;

const at::Device kGpu(at::kCUDA, 0);
constexpr Bytes kPinned = MiB(4);
// The whole memory of the fake GPU. On a real GPU, torch's workspaces lie in
// these bytes, too.
constexpr Bytes kHbm = MiB(64);

template <typename T>
T Ok(absl::StatusOr<T> value) {
  EXPECT_THAT(value.status(), IsOk());
  return *std::move(value);
}

const stream::ModelShape kModel = stream::Gpt({.layers = 2,
                                               .hidden = 16,
                                               .heads = 2,
                                               .kv_heads = 2,
                                               .ffn = 20,
                                               .vocab = 30,
                                               .max_positions = 12});

class OnCuda : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    runtime::ChooseWorkspaceSize();
    if (OnTheFake()) return;
    std::puts("not on the fake: waits and pageable copies are not counted");
  }
  void SetUp() override {
    Ok(runtime::LoadTorchCuda());
    driver_ = Ok(device::OpenCudaDriver());
    memory_ = Extent(device::Placement::Gpu(DeviceIndex(0)), kHbm);
    pinned_ = Extent(device::Placement::Host(NumaIndex(0)), kPinned);
    compute_ = driver_->ComputeStream(DeviceIndex(0));
    c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(
        static_cast<cudaStream_t>(Ok(driver_->NativeStream(compute_))), 0));
    allocator_ = std::make_unique<runtime::RegionAllocator>(
        kGpu, memory_->address(), kHbm);
    allocator_->Arm();
    // Small, so that large tensors take several pieces.
    stage_ = std::make_unique<HostStage>(pinned_->address(), KiB(4));
    at::manual_seed(1);
  }
  void TearDown() override {
    if (stage_ == nullptr) return;  // SetUp failed
    stage_.reset();
    EXPECT_THAT(driver_->SynchronizeStream(compute_), IsOk());
    runtime::DropWorkspaces(kGpu);
    EXPECT_EQ(allocator_->stats().used, Bytes(0));
    allocator_.reset();
    pinned_.reset();
    memory_.reset();
    driver_.reset();
    std::string findings;
    if (OnTheFake()) fake_cuda::fake_cuda_take_findings(findings);
    EXPECT_EQ(findings, "");
  }

  std::unique_ptr<device::Mapped> Extent(device::Placement where, Bytes size) {
    return Ok(device::Mapped::Create(driver_.get(), where, size));
  }
  static bool OnTheFake() {
    return dlsym(RTLD_DEFAULT, "fake_cuda_calls") != nullptr;
  }
  // Returns how often the host waited for the GPU; 0 if waits are not counted.
  static long Waits() {
    if (!OnTheFake()) return 0;
    return fake_cuda::fake_cuda_calls("cuStreamSynchronize") +
           fake_cuda::fake_cuda_calls("cuEventSynchronize");
  }
  // Returns how often pageable memory was copied; 0 if that is not counted.
  static long Pageable() {
    return OnTheFake() ? fake_cuda::fake_cuda_pageable_copies() : 0;
  }
  static void ExpectOneWaitSince(long waits) {
    if (OnTheFake()) {
      EXPECT_EQ(Waits() - waits, 1);
    }
  }

  std::unique_ptr<device::Driver> driver_;
  std::unique_ptr<device::Mapped> memory_, pinned_;
  device::Stream compute_;
  std::unique_ptr<runtime::RegionAllocator> allocator_;
  std::unique_ptr<HostStage> stage_;
  HostStage none_;  // for tensors on the CPU
};

TEST_F(OnCuda, AStageCopiesBytesBothWaysWithoutPageableMemory) {
  std::vector<int64_t> ids(10'001);
  std::iota(ids.begin(), ids.end(), 7);
  const long pageable = Pageable();
  const at::Tensor there =
      at::zeros({std::ssize(ids)}, runtime::On(kGpu, at::kLong));
  ASSERT_THAT(stage_->Write(there, ids.data()), IsOk());
  std::vector<std::byte> back;
  ASSERT_THAT(stage_->Read(there + 1,
                           [&](const std::byte* data, Bytes size) {
                             back.insert(back.end(), data, data + size.count());
                             return absl::OkStatus();
                           }),
              IsOk());
  std::iota(ids.begin(), ids.end(), 8);
  ASSERT_EQ(back.size(), ids.size() * sizeof(int64_t));
  EXPECT_EQ(std::memcmp(back.data(), ids.data(), back.size()), 0);
  EXPECT_EQ(Pageable(), pageable);
}

TEST_F(OnCuda, AStageWaitsForNoCopyThatFitsIntoIt) {
  const std::vector<int64_t> ids(KiB(2).size() / sizeof(int64_t), 3);
  const auto there = [&] {
    return at::empty({std::ssize(ids)}, runtime::On(kGpu, at::kLong));
  };
  const at::Tensor tokens = there(), labels = there();
  for (int step = 0; step < 3; ++step) {
    const long waits = Waits();
    ASSERT_THAT(stage_->Write(tokens, ids.data()), IsOk());
    ASSERT_THAT(stage_->Write(labels, ids.data()), IsOk());
    EXPECT_EQ(Waits(), waits);
    EXPECT_EQ((tokens + labels).sum().item<int64_t>(), 6 * std::ssize(ids));
  }
}

TEST_F(OnCuda, WithoutPinnedMemoryAStageRefuses) {
  HostStage none;
  const at::Tensor there = at::zeros({4}, runtime::On(kGpu, at::kByte));
  EXPECT_EQ(none.Write(there, "abcd").code(),
            absl::StatusCode::kInvalidArgument);
}

// A model and its optimizer, with equal weights on every device.
struct Training {
  Training(at::ScalarType dtype, at::Device device, HostStage& stage)
      : weights(kModel, dtype, device), gradients(kModel, at::kFloat, device) {
    EXPECT_THAT(weights.Initialize(kModel, 7, stage), IsOk());
    adamw = std::make_unique<AdamW>(
        AdamWOptions{.lr = 1e-2, .warmup = 2, .clip = 0.5}, &weights,
        &gradients, nullptr);
  }
  double Step(int64_t step, const at::Tensor& gradient) {
    gradients.flat().copy_(gradient);
    const double norm = Ok(adamw->ReduceGradients());
    EXPECT_THAT(adamw->Update(step, norm), IsOk());
    return norm;
  }
  std::vector<at::Tensor> All() {
    AdamW::States& s = adamw->states();
    std::vector<at::Tensor> all = {weights.flat(), s.m, s.v};
    if (s.master.defined()) all.push_back(s.master);
    return all;
  }

  FlatModel weights, gradients;
  std::unique_ptr<AdamW> adamw;
};

void ExpectSame(Training& one, Training& other) {
  const auto ours = one.All(), theirs = other.All();
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(at::equal(ours[i].cpu(), theirs[i].cpu())) << i;
  }
}

TEST_F(OnCuda, SeededWeightsEqualTheCpusAndNeedNoPageableMemory) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const long pageable = Pageable();
    Training gpu(dtype, kGpu, *stage_);
    EXPECT_EQ(Pageable(), pageable);
    Training cpu(dtype, at::kCPU, none_);
    ExpectSame(gpu, cpu);
  }
}

TEST_F(OnCuda, LossAndCountOfAStepCostOneWait) {
  const std::vector<int64_t> labels = {3, runtime::kIgnoredLabel, 0, 7};
  const at::Tensor there = at::empty({4}, runtime::On(kGpu, at::kLong));
  ASSERT_THAT(stage_->Write(there, labels.data()), IsOk());
  const at::Tensor sum = at::full({}, 0.1, runtime::On(kGpu, at::kDouble));
  const long waits = Waits(), pageable = Pageable();
  const runtime::StepResult result = runtime::ReadResult(sum, there);
  ExpectOneWaitSince(waits);
  EXPECT_EQ(Pageable(), pageable);
  EXPECT_EQ(result.loss_sum, 0.1);
  EXPECT_EQ(result.count, 3);
}

// Expects nearly equal results: a real GPU's multiply-adds round once.
void ExpectNear(Training& one, Training& other) {
  const auto ours = one.All(), theirs = other.All();
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    const at::Tensor a = ours[i].cpu().to(at::kDouble);
    const at::Tensor b = theirs[i].cpu().to(at::kDouble);
    EXPECT_TRUE(at::allclose(a, b, /*rtol=*/1e-2, /*atol=*/1e-6)) << i;
  }
}

TEST_F(OnCuda, AdamWGivesTheCpusBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Training gpu(dtype, kGpu, *stage_), cpu(dtype, at::kCPU, none_);
    ExpectSame(gpu, cpu);
    for (int64_t step = 0; step < 3; ++step) {
      const at::Tensor gradient =
          at::rand({gpu.weights.size()}, runtime::OnHost(at::kFloat)) - 0.3;
      EXPECT_FLOAT_EQ(gpu.Step(step, gradient), cpu.Step(step, gradient));
    }
    OnTheFake() ? ExpectSame(gpu, cpu) : ExpectNear(gpu, cpu);
  }
}

TEST_F(OnCuda, TheOptimizerWaitsOnceHoweverManyBuckets) {
  const stream::ModelShape wide = stream::Gpt({.layers = 1,
                                               .hidden = 160,
                                               .heads = 2,
                                               .kv_heads = 2,
                                               .ffn = 160,
                                               .vocab = 200,
                                               .max_positions = 4});
  FlatModel weights(wide, at::kBFloat16, kGpu),
      gradients(wide, at::kFloat, kGpu);
  AdamW adamw({}, &weights, &gradients, nullptr);
  const long waits = Waits(), pageable = Pageable();
  const double norm = Ok(adamw.ReduceGradients());
  ASSERT_THAT(adamw.Update(0, norm), IsOk());
  ExpectOneWaitSince(waits);
  EXPECT_EQ(Pageable(), pageable);
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(OnCuda, ACheckpointHasTheCpusBytesAndLoadsUnchanged) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    RunOptions options;
    options.model = kModel;
    options.seq_len = 12;
    options.dtype = dtype == at::kFloat ? Dtype::kFp32 : Dtype::kBf16;
    const RankEnvironment environment;
    const TempDir here, there;
    const StateFile state{
        .step = 3, .next_token = 36, .identity = {"0123456789abcdef", "", 0}};
    const at::Tensor gradient =
        at::rand({Training(dtype, at::kCPU, none_).weights.size()},
                 runtime::OnHost(at::kFloat));
    Training gpu(dtype, kGpu, *stage_), cpu(dtype, at::kCPU, none_);
    const auto write = [&](Training& training, HostStage* stage,
                           const std::string& folder) {
      training.Step(0, gradient);
      const StepperContext context{.options = &options,
                                   .environment = &environment,
                                   .weights = &training.weights,
                                   .stage = stage};
      return WriteCheckpoint(folder, context, state, *training.adamw, nullptr);
    };
    ASSERT_THAT(write(cpu, &none_, here.path()), IsOk());
    ASSERT_THAT(write(gpu, stage_.get(), there.path()), IsOk());
    if (OnTheFake()) {  // a real GPU's step rounds differently
      EXPECT_EQ(Contents(WeightsFile(here.path())),
                Contents(WeightsFile(there.path())));
      EXPECT_EQ(Contents(OptimizerFile(here.path(), 0, 1)),
                Contents(OptimizerFile(there.path(), 0, 1)));
    }

    Training resumed(dtype, kGpu, *stage_);
    const long pageable = Pageable();
    const Checkpoint checkpoint =
        Ok(OpenCheckpoint(there.path(), options, environment));
    ASSERT_THAT(checkpoint.LoadWeights(resumed.weights, *stage_), IsOk());
    ASSERT_THAT(checkpoint.LoadOptimizer(*resumed.adamw, *stage_), IsOk());
    EXPECT_EQ(Pageable(), pageable);
    ExpectSame(resumed, gpu);
  }
}

}  // namespace
}  // namespace sluice::train
