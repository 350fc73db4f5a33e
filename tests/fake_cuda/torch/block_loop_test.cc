// Causal attention over chunks as the streamed layer runs it: with the
// product's cuda table, copy engine and merge kernel, and torch's flash
// attention on CUDA tensors. Each case but the first leaves out one wait, which
// the race detector must report, whatever the timing.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "client/copy/copy_engine.h"
#include "gtest/gtest.h"
#include "kernels/ops/gpu_kernels.h"
#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/torch/kernel.h"
#include "tests/fake_cuda/torch/piece_allocator.h"
#include "tests/fake_cuda/torch/region.h"
#include "tests/support/case_name.h"

namespace sluice::fake_cuda {
namespace {

using client::CopyEngine;
using client::Ticket;
using device::CopyDirection;

enum class Wait {
  kNone,
  kKeysArrived,   // compute waits for the copy of k and v
  kOutputSent,    // compute waits for the copy of the previous o
  kQueriesUsed,   // the copy of q waits for compute
  kKeysUsed,      // the copy of k and v waits for compute
  kOutputMerged,  // the copy of o waits for compute
};
constexpr const char* kNames[] = {"None",        "KeysArrived", "OutputSent",
                                  "QueriesUsed", "KeysUsed",    "OutputMerged"};
void PrintTo(Wait wait, std::ostream* out) {
  *out << kNames[static_cast<int>(wait)];
}

constexpr int64_t kChunks = 4, kRows = 48, kHeads = 4, kKeyHeads = 2, kDim = 16;

// Cuts tensors from a region, one after another.
class Cutter {
 public:
  Cutter(const Region& region, at::Device device)
      : next_(region.address), device_(device) {}
  at::Tensor Cut(std::vector<int64_t> sizes, at::ScalarType type) {
    const at::Tensor tensor =
        at::for_blob(next_, sizes)
            .options(at::TensorOptions().dtype(type).device(device_))
            .target_device(device_)
            .make_tensor();
    next_ += RoundUp(Bytes(static_cast<int64_t>(tensor.nbytes())), Bytes(512))
                 .count();
    return tensor;
  }

 private:
  std::byte* next_;
  const at::Device device_;
};

at::Tensor Batched(const at::Tensor& t) {
  return t.transpose(0, 1).unsqueeze(0);
}

class BlockLoop {
 public:
  BlockLoop(device::Driver* driver, Wait left_out)
      : driver_(driver),
        left_out_(left_out),
        gpu_(driver, device::Placement::Gpu(DeviceIndex(0)), MiB(2)),
        host_(driver, device::Placement::Host(NumaIndex(0)), MiB(4)),
        merge_(Ok(ops::MergeKernel::Load(driver))) {
    compute_ = driver->ComputeStream(DeviceIndex(0));
    CopyEngine::Options options;
    options.driver = driver;
    options.device = DeviceIndex(0);
    engine_ = Ok(CopyEngine::Start(options));
    Cutter host(host_, at::kCPU), gpu(gpu_, at::Device(at::kCUDA, 0));
    const int64_t all = kChunks * kRows;
    q_ = host.Cut({all, kHeads, kDim}, at::kBFloat16);
    k_ = host.Cut({all, kKeyHeads, kDim}, at::kBFloat16);
    v_ = host.Cut({all, kKeyHeads, kDim}, at::kBFloat16);
    o_ = host.Cut({all, kHeads, kDim}, at::kFloat);
    for (at::Tensor* t : {&q_, &k_, &v_}) t->copy_(at::randn(t->sizes()));
    q_slot_ = gpu.Cut({kRows, kHeads, kDim}, at::kBFloat16);
    o_slot_ = gpu.Cut({kRows, kHeads, kDim}, at::kFloat);
    lse_slot_ = gpu.Cut({kHeads, kRows}, at::kFloat);
    for (at::Tensor* t :
         {&k_slots_[0], &v_slots_[0], &k_slots_[1], &v_slots_[1]}) {
      *t = gpu.Cut({kRows, kKeyHeads, kDim}, at::kBFloat16);
    }
  }

  void Run() {
    for (int64_t m = 0; m < kChunks; ++m) {
      // Compute need not wait for q: it waits for k and v, which are copied
      // after q on the same stream.
      In(q_slot_, q_, m, After(Wait::kQueriesUsed, {queries_used_}));
      WaitFor(Wait::kOutputSent, output_sent_);
      lse_slot_.fill_(-INFINITY);
      for (int64_t i = 0; i <= m; ++i) Block(i, i == m);
      queries_used_ = engine_->MarkCompute();
      Send(m);
    }
    Ok(engine_->Drain());
    Ok(driver_->SynchronizeStream(compute_));
  }

  double Error() const {
    const auto wide = [](const at::Tensor& t) {
      return Batched(t).to(at::kFloat);
    };
    const auto whole = at::_scaled_dot_product_flash_attention_for_cpu(
        wide(q_), wide(k_), wide(v_), 0, true);
    return (std::get<0>(whole) - wide(o_)).abs().max().item<double>();
  }

 private:
  std::vector<Ticket> After(Wait wait, std::vector<Ticket> tickets) const {
    return wait == left_out_ ? std::vector<Ticket>() : tickets;
  }
  void WaitFor(Wait wait, const Ticket& ticket) {
    if (wait != left_out_) Ok(engine_->Wait(ticket));
  }
  Ticket In(const at::Tensor& to, const at::Tensor& all, int64_t chunk,
            std::vector<Ticket> after) {
    const at::Tensor from = all.narrow(0, chunk * kRows, kRows);
    return engine_->Enqueue(
        {CopyDirection::kHostToDevice, {Piece(to, from)}, after, "in"});
  }
  static client::CopyPiece Piece(const at::Tensor& to, const at::Tensor& from) {
    return {static_cast<std::byte*>(to.data_ptr()),
            static_cast<const std::byte*>(from.const_data_ptr()),
            Bytes(static_cast<int64_t>(to.nbytes()))};
  }

  void Block(int64_t i, bool diagonal) {
    const int slot = slot_++ % 2;
    const auto after = After(Wait::kKeysUsed, {keys_used_[slot]});
    In(k_slots_[slot], k_, i, after);
    const Ticket keys = In(v_slots_[slot], v_, i, after);
    WaitFor(Wait::kKeysArrived, keys);
    const auto block = at::_scaled_dot_product_flash_attention(
        Batched(q_slot_), Batched(k_slots_[slot]), Batched(v_slots_[slot]), 0,
        diagonal);
    Merge(std::get<0>(block).squeeze(0).transpose(0, 1),
          std::get<1>(block).squeeze(0));
    keys_used_[slot] = engine_->MarkCompute();
  }

  void Merge(const at::Tensor& o, const at::Tensor& lse) {
    const ops::MergeShape shape{
        .rows = kRows,
        .heads = kHeads,
        .dim = kDim,
        .o = {o_slot_.stride(0), o_slot_.stride(1)},
        .lse = {lse_slot_.stride(1), lse_slot_.stride(0)},
        .block_o = {o.stride(0), o.stride(1)},
        .block_lse = {lse.stride(1), lse.stride(0)}};
    Ok(merge_.Launch(shape, o_slot_.data_ptr<float>(),
                     lse_slot_.data_ptr<float>(),
                     static_cast<const ops::BFloat16*>(o.const_data_ptr()),
                     lse.const_data_ptr<float>(), compute_));
  }

  void Send(int64_t m) {
    output_sent_ =
        engine_->Enqueue({CopyDirection::kDeviceToHost,
                          {Piece(o_.narrow(0, m * kRows, kRows), o_slot_)},
                          After(Wait::kOutputMerged, {engine_->MarkCompute()}),
                          "o"});
  }

  device::Driver* const driver_;
  const Wait left_out_;
  const Region gpu_, host_;
  const ops::MergeKernel merge_;
  device::Stream compute_;
  at::Tensor q_, k_, v_, o_;
  at::Tensor q_slot_, o_slot_, lse_slot_, k_slots_[2], v_slots_[2];
  std::unique_ptr<CopyEngine> engine_;  // destroyed before the memory
  Ticket queries_used_, keys_used_[2], output_sent_;
  int slot_ = 0;
};

class BlockLoopWaits : public ::testing::TestWithParam<Wait> {};

TEST_P(BlockLoopWaits, AMissingWaitIsARaceAndAllWaitsSuffice) {
  const auto driver = Ok(device::OpenCudaDriver());
  const Region transients(driver.get(), device::Placement::Gpu(DeviceIndex(0)),
                          MiB(8));
  PieceAllocator::Install(transients.address,
                          static_cast<size_t>(MiB(8).count()));
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(
      static_cast<cudaStream_t>(
          Ok(driver->NativeStream(driver->ComputeStream(DeviceIndex(0))))),
      0));
  std::string findings;
  fake_cuda_take_findings(findings);
  const int64_t looks = Looks();
  const long pageable = fake_cuda_pageable_copies();
  at::manual_seed(3);
  {
    BlockLoop loop(driver.get(), GetParam());
    loop.Run();
    fake_cuda_take_findings(findings);
    if (GetParam() == Wait::kNone) {
      EXPECT_EQ(findings, "");
      EXPECT_LT(loop.Error(), 0.02);
    } else {
      EXPECT_THAT(findings, ::testing::HasSubstr("race: "));
    }
  }
  EXPECT_EQ(Looks(), looks);
  EXPECT_EQ(fake_cuda_pageable_copies(), pageable);
}

INSTANTIATE_TEST_SUITE_P(All, BlockLoopWaits,
                         ::testing::Values(Wait::kNone, Wait::kKeysArrived,
                                           Wait::kOutputSent,
                                           Wait::kQueriesUsed, Wait::kKeysUsed,
                                           Wait::kOutputMerged),
                         ::sluice::testing::CaseName());

}  // namespace
}  // namespace sluice::fake_cuda
