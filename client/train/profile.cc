#include "client/train/profile.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "client/copy/copy_engine.h"
#include "client/torch/placement.h"
#include "client/torch/run/agreement.h"
#include "client/train/profile_machine.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

constexpr Bytes kCopied = MiB(16);       // a copy over a link
constexpr int kInARow = 4;               // copies in a row
constexpr int64_t kExchanged = 1 << 20;  // elements per rank, all-to-all

// The fields in the order of the tensor that is summed over the ranks.
constexpr double Measured::*kFields[] = {&Measured::matmul_flops,
                                         &Measured::matmul_fp32_flops,
                                         &Measured::forward_flops,
                                         &Measured::backward_flops,
                                         &Measured::narrow_forward_flops,
                                         &Measured::narrow_backward_flops,
                                         &Measured::memory,
                                         &Measured::h2d,
                                         &Measured::d2h,
                                         &Measured::exchange,
                                         &Measured::gpu_bytes,
                                         &Measured::host_bytes};

// Returns the bytes to copy, one size for all ranks, because they measure
// together. GPUs copy more, because their links are faster.
Bytes CopiedBytes(Machine& machine) {
  runtime::RankMemory& memory = machine.memory();
  if (!machine.real()) return std::min(kCopied, memory.size());
  const Bytes share = memory.session().limits().host_total / 32;
  return std::min({16 * kCopied, memory.size() / 4, share});
}

// Returns the seconds per copy of several copies in a row between host and GPU
// memory, from the moment when compute requests them until compute may go on. A
// step's copies come in rows too; the time of a single copy would mostly be the
// time until the host may start it.
absl::StatusOr<double> MeasuredCopySeconds(Machine& machine,
                                           client::CopyEngine& engine,
                                           std::byte* host, std::byte* device,
                                           Bytes size,
                                           device::CopyDirection direction) {
  const bool in = direction == device::CopyDirection::kHostToDevice;
  absl::Status status;
  const auto seconds = machine.Seconds([&] {
    const client::Ticket begin = engine.MarkCompute();
    client::Ticket last;
    for (int i = 0; i < kInARow; ++i) {
      last = engine.Enqueue(
          {.direction = direction,
           .pieces = {{in ? device : host, in ? host : device, size}},
           .after = {begin},
           .label = "profile"});
    }
    status.Update(engine.Wait(last));
  });
  status.Update(engine.Drain());
  SLUICE_RETURN_IF_ERROR(status);
  SLUICE_RETURN_IF_ERROR(seconds.status());
  return *seconds / kInARow;
}

absl::Status MeasureCopies(Machine& machine, runtime::Collectives* collectives,
                           Measured& m) {
  runtime::RankMemory& memory = machine.memory();
  SLUICE_ASSIGN_OR_RETURN(const auto engine,
                          memory.StartCopies(/*timeline=*/false));
  const Bytes size = CopiedBytes(machine);
  SLUICE_ASSIGN_OR_RETURN(const auto host, memory.LeaseHost(size));
  at::Tensor on_gpu;
  std::byte* device = memory.data();
  if (machine.real()) {  // torch allocates in the region
    on_gpu = at::empty({size.count()}, machine.On(at::kByte));
    device = static_cast<std::byte*>(on_gpu.data_ptr());
  }
  for (const auto& [direction, field] :
       {std::pair{device::CopyDirection::kHostToDevice, &Measured::h2d},
        std::pair{device::CopyDirection::kDeviceToHost, &Measured::d2h}}) {
    if (collectives != nullptr) {
      SLUICE_RETURN_IF_ERROR(collectives->Barrier());
    }
    SLUICE_ASSIGN_OR_RETURN(const double seconds,
                            MeasuredCopySeconds(machine, *engine, host->data(),
                                                device, size, direction));
    m.*field = static_cast<double>(size.count()) / seconds;
  }
  return absl::OkStatus();
}

// Runs an all-to-all of `elements` per rank. The result counts the bytes that a
// rank sends to others.
absl::StatusOr<Run> Exchange(Machine& machine,
                             runtime::Collectives& collectives,
                             int64_t elements) {
  const int64_t ranks = collectives.world_size();
  const std::vector<int64_t> counts(static_cast<size_t>(ranks),
                                    elements / ranks);
  SLUICE_ASSIGN_OR_RETURN(const at::Tensor drawn, machine.Drawn({elements}));
  const at::Tensor send = drawn.narrow(0, 0, elements / ranks * ranks);
  at::Tensor receive = at::empty_like(send);
  absl::Status status;
  SLUICE_ASSIGN_OR_RETURN(const double seconds, machine.Seconds([&] {
    status.Update(collectives.AllToAll(receive, counts, send, counts));
  }));
  SLUICE_RETURN_IF_ERROR(status);
  if (machine.real()) SLUICE_RETURN_IF_ERROR(collectives.Check());
  const auto sent =
      static_cast<double>(send.element_size() * counts[0] * (ranks - 1));
  return Run{sent, seconds};
}

// Measures the bytes per second that a rank sends to others, at the first size
// that takes every rank long enough, or the last size that fits on all. All
// ranks use one size, because otherwise they would wait for each other.
absl::Status MeasureExchange(Machine& machine,
                             runtime::Collectives& collectives, Measured& m) {
  const auto element = static_cast<int64_t>(at::elementSize(machine.type()));
  for (int64_t elements = kExchanged;; elements *= 2) {
    SLUICE_ASSIGN_OR_RETURN(const Run run,
                            Exchange(machine, collectives, elements));
    m.exchange = run.work / run.seconds;
    m.exchanged = Bytes(elements * element);
    // The next size is twice as large, and its sent and received tensors must
    // fit.
    const double full = machine.HasRoom(4 * m.exchanged) ? 0 : 1;
    SLUICE_ASSIGN_OR_RETURN(
        const std::vector<double> worst,
        runtime::WorstOfRanks(&collectives, {full, -run.seconds}));
    if (worst[0] > 0 || -worst[1] >= kEnough) return absl::OkStatus();
  }
}

absl::Status Average(runtime::Collectives& collectives, Measured& m) {
  at::Tensor sums = at::empty({static_cast<int64_t>(std::size(kFields))},
                              runtime::OnHost(at::kDouble));
  double* const values = sums.data_ptr<double>();
  for (size_t i = 0; i < std::size(kFields); ++i) values[i] = m.*kFields[i];
  SLUICE_RETURN_IF_ERROR(collectives.SumAll(sums));
  for (size_t i = 0; i < std::size(kFields); ++i) {
    m.*kFields[i] = values[i] / collectives.world_size();
  }
  return absl::OkStatus();
}

// Formats "1 rank", "2 ranks".
std::string Some(int count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string KernelsToml(const Measured& m, double peak) {
  return fmt::format(
      "[kernels]\nmatmul = {:.4f}\n# Of fp32 tensors, as gradients of weights "
      "are.\nmatmul_fp32 = {:.4f}\n# Over heads of attention_head_dim, and of "
      "64.\nattention_head_dim = {}\nattention_forward = {:.4f}\n"
      "attention_backward = {:.4f}\nattention_forward_64 = {:.4f}\n"
      "attention_backward_64 = {:.4f}\n",
      m.matmul_flops / peak, m.matmul_fp32_flops / peak, kHeadDim,
      m.forward_flops / peak, m.backward_flops / peak,
      m.narrow_forward_flops / peak, m.narrow_backward_flops / peak);
}

std::string Toml(const Machine& machine, const Measured& m, int64_t gpus,
                 int ranks, int threads) {
  const double peak = std::max(
      {m.matmul_flops, m.matmul_fp32_flops, m.forward_flops, m.backward_flops,
       m.narrow_forward_flops, m.narrow_backward_flops});
  const bool alone = ranks == 1;
  const std::string what =
      machine.real()
          ? fmt::format(
                "bf16, attention by {},\n# by the GPU's clock. The "
                "peak is the best rate that one of the kernels\n# "
                "reached",
                machine.attention())
          : fmt::format(
                "{} each, fp32.\n# A SIMULATED node: the kernels are the "
                "CPU's, the peak is the best rate\n# that one of them "
                "reached, the links are sim's",
                Some(threads, "thread"));
  return fmt::format(
             "# Measured by sluice-train profile, {} at once, {}.\n"
             "name = \"measured\"\nnote = \"measured on a {} node by "
             "sluice-train profile\"\n\n[gpu]\npeak_flops = {:.4g}\n"
             "memory_bytes = {:.0f}\nmemory_bytes_per_s = {:.4g}\n\n",
             Some(ranks, "rank"), what, machine.real() ? "real" : "simulated",
             peak, m.gpu_bytes, m.memory) +
         KernelsToml(m, peak) +
         fmt::format(
             "\n[node]\ngpus = {}\n# Of the first NUMA node.\n"
             "host_memory_bytes = {:.0f}\n\n[links]\n# The slower direction, "
             "through the daemon's grants.\nhost_bytes_per_s = {:.4g}\n# {}.\n"
             "gpu_bytes_per_s = {:.4g}\n# One node: as between its GPUs.\n"
             "network_bytes_per_s = {:.4g}\n",
             gpus, m.host_bytes, std::min(m.h2d, m.d2h),
             alone ? "Not measured (one rank): memory's"
                   : fmt::format("An all-to-all over {}, {} of each rank",
                                 machine.real() ? "NCCL" : "Gloo",
                                 FormatBytes(m.exchanged)),
             alone ? m.memory : m.exchange, alone ? m.memory : m.exchange);
}

}  // namespace

absl::Status MeasureMachine(const RunOptions& options,
                            runtime::RankMemory& memory,
                            runtime::Collectives* collectives,
                            std::string* toml) {
  const client::NodeLimits limits = memory.session().limits();
  Machine machine(memory);
  SLUICE_RETURN_IF_ERROR(machine.Begin());
  Measured measured;
  measured.gpu_bytes = static_cast<double>(limits.gpu_total.count());
  measured.host_bytes = static_cast<double>(limits.host_total.count());
  SLUICE_RETURN_IF_ERROR(MeasureKernels(machine, measured));
  SLUICE_RETURN_IF_ERROR(MeasureCopies(machine, collectives, measured));
  if (collectives != nullptr) {
    SLUICE_RETURN_IF_ERROR(MeasureExchange(machine, *collectives, measured));
    SLUICE_RETURN_IF_ERROR(Average(*collectives, measured));
  }
  SLUICE_ASSIGN_OR_RETURN(const auto gpus, client::ListGpus(options.socket));
  *toml =
      Toml(machine, measured, std::ssize(gpus), options.ranks, options.threads);
  return absl::OkStatus();
}

}  // namespace sluice::train
