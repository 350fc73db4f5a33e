// The machine on which `sluice-train profile` measures: the rank's memory and a
// clock (internal to profile).
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

// The heads over which attention is measured: a model's, and narrow ones, which
// are slower on a GPU (planner/train/hardware.h).
inline constexpr int64_t kHeadDim = 128, kNarrowDim = 64;

// A rank's figures, or averages over ranks. All but bytes are per second.
struct Measured {
  double matmul_flops = 0,
         matmul_fp32_flops = 0;  // in the machine's dtype; in fp32
  double forward_flops = 0, backward_flops = 0;
  double narrow_forward_flops = 0, narrow_backward_flops = 0;
  double memory = 0, h2d = 0, d2h = 0, exchange = 0;  // bytes per second
  double gpu_bytes = 0, host_bytes = 0;
  Bytes exchanged;  // per rank in the all-to-all; equal on all ranks
};

// The work of a run, and its duration.
struct Run {
  double work = 0, seconds = 0;
};
// A shorter run is measured again with twice the work, if there is room,
// because a GPU is faster than a CPU.
inline constexpr double kEnough = 2e-3;  // seconds

// The device and the dtype of the measured kernels: the CPU in fp32, a GPU in
// the dtype in which it trains.
class Machine {
 public:
  explicit Machine(runtime::RankMemory& memory)
      : memory_(memory), timer_(&memory.session().driver()) {}

  // Prepares a GPU: its memory becomes torch's, and its stream the clock.
  absl::Status Begin();

  bool real() const { return memory_.device().is_cuda(); }
  runtime::RankMemory& memory() { return memory_; }
  at::TensorOptions On(at::ScalarType type) const {
    return runtime::On(memory_.device(), type);
  }
  at::ScalarType type() const { return real() ? at::kBFloat16 : at::kFloat; }
  std::string attention() const { return memory_.KernelName(type(), kHeadDim); }
  // Returns whether operands of this size may be allocated. Half of the memory
  // is reserved for what kernels need besides their operands.
  bool HasRoom(Bytes bytes) const { return bytes <= memory_.size() / 2; }

  // Returns kDrawn normally distributed numbers, repeated to fill the tensor.
  static constexpr int64_t kDrawn = 1 << 18;
  absl::StatusOr<at::Tensor> Drawn(at::IntArrayRef sizes);
  // Returns the median time of several runs, without the first, which warms up.
  // On a GPU its stream measures the time.
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

// Measures what needs one rank only: matmul, attention, memory.
absl::Status MeasureKernels(Machine& machine, Measured& m);

}  // namespace sluice::train
