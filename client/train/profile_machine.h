// What `sluice-train profile` measures with: the rank's memory as a machine
// with a clock (internal to profile).
//
// Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/torch/placement.h"
#include "client/torch/run/rank_memory.h"
#include "kernels/device/stream_timer.h"

namespace sluice::train {

// The heads that attention is measured over: a model's, and narrow ones, at
// which a GPU is slower (planner/train/hardware.h).
inline constexpr int64_t kHeadDim = 128, kNarrowDim = 64;

// A rank's figures, or averages over ranks; what is not bytes is per second.
struct Measured {
  double matmul_flops = 0,
         matmul_fp32_flops = 0;  // of the machine's type; fp32
  double forward_flops = 0, backward_flops = 0;
  double narrow_forward_flops = 0, narrow_backward_flops = 0;
  double memory = 0, h2d = 0, d2h = 0, exchange = 0;  // bytes per second
  double gpu_bytes = 0, host_bytes = 0;
  Bytes exchanged;  // of a rank, in the all-to-all; on all ranks the same
};

// What was done in a run, and how long it took.
struct Run {
  double work = 0, seconds = 0;
};
// A run that takes less is measured again with twice as much, as far as there
// is room: a GPU is faster than a CPU.
inline constexpr double kEnough = 2e-3;  // seconds

// Where and in which type kernels are measured: the CPU's in fp32; a GPU's in
// what it trains in.
class Machine {
 public:
  explicit Machine(runtime::RankMemory& memory)
      : memory_(memory), timer_(&memory.session().driver()) {}

  // On a GPU: its memory becomes torch's, its stream the clock.
  absl::Status Begin();

  bool real() const { return memory_.device().is_cuda(); }
  runtime::RankMemory& memory() { return memory_; }
  at::TensorOptions On(at::ScalarType type) const {
    return runtime::On(memory_.device(), type);
  }
  at::ScalarType type() const { return real() ? at::kBFloat16 : at::kFloat; }
  std::string attention() const { return memory_.KernelName(type(), kHeadDim); }
  // Half of it is left to what kernels need beside their operands.
  bool HasRoom(Bytes bytes) const { return bytes <= memory_.size() / 2; }

  // Normally distributed, the same kDrawn numbers over and over: so many or a
  // multiple of it.
  static constexpr int64_t kDrawn = 1 << 18;
  absl::StatusOr<at::Tensor> Drawn(at::IntArrayRef sizes);
  // The median of some runs, the first left out (it warms up); on a GPU of the
  // time that its stream takes.
  absl::StatusOr<double> Seconds(const std::function<void()>& work);

 private:
  absl::StatusOr<std::vector<double>> ByCaller(
      const std::function<void()>& work);
  absl::StatusOr<std::vector<double>> ByStream(
      const std::function<void()>& work);

  runtime::RankMemory& memory_;
  device::StreamTimer timer_;
  device::Stream stream_;
};

// MeasureMachine's part that needs one rank: matmul, attention, memory.
absl::Status MeasureKernels(Machine& machine, Measured& m);

}  // namespace sluice::train
