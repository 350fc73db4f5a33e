#include "client/train/profile.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "client/copy/copy_engine.h"
#include "client/torch/math/attention_blocks.h"
#include "client/torch/placement.h"
#include "client/torch/run/agreement.h"
#include "kernels/device/stream_timer.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

// Sizes to begin with: large enough that no kernel of the CPU is bound by its
// start, small enough that all of it takes seconds on one core. What takes less
// than kEnough is measured again with twice as much, as far as there is room:
// a GPU is faster.
constexpr int64_t kSide = 1024;  // of the square matmul
constexpr int64_t kRows = 1024;  // of an attention block
constexpr int64_t kHeads = 4, kDim = 64;
constexpr Bytes kCopied = MiB(16);       // a copy over a link
constexpr int kInARow = 4;               // of them
constexpr int64_t kStreamed = 16 << 20;  // elements through memory
constexpr int64_t kExchanged = 1 << 20;  // elements of a rank, all-to-all
constexpr double kEnough = 2e-3;         // seconds
constexpr int kRepeats = 5;
constexpr int64_t kDrawn = 1 << 18;  // elements, repeated where more are needed

// Averages over the ranks; the order is that of the sum's tensor.
struct Measured {
  double matmul_flops = 0, forward_flops = 0, backward_flops = 0;
  double memory = 0, h2d = 0, d2h = 0, exchange = 0;  // bytes per second
  double gpu_bytes = 0, host_bytes = 0;
  Bytes exchanged;  // of a rank, in the all-to-all; on all ranks the same
};
constexpr double Measured::*kFields[] = {&Measured::matmul_flops,
                                         &Measured::forward_flops,
                                         &Measured::backward_flops,
                                         &Measured::memory,
                                         &Measured::h2d,
                                         &Measured::d2h,
                                         &Measured::exchange,
                                         &Measured::gpu_bytes,
                                         &Measured::host_bytes};

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
  std::string attention() const { return memory_.KernelName(type(), kDim); }
  // Half of it is left to what kernels need beside their operands.
  bool HasRoom(Bytes bytes) const { return bytes <= memory_.size() / 2; }

  // Normally distributed, the same numbers over and over.
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

absl::Status Machine::Begin() {
  if (!real()) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(memory_.Arm());
  SLUICE_ASSIGN_OR_RETURN(stream_, memory_.ComputeStream());
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> Machine::Drawn(at::IntArrayRef sizes) {
  const at::Tensor host =
      at::randn({kDrawn}, runtime::OnHost(at::kFloat)).to(type());
  at::Tensor piece = at::empty({kDrawn}, On(type()));
  SLUICE_RETURN_IF_ERROR(memory_.stage().Write(piece, host.const_data_ptr()));
  at::Tensor all = at::empty(sizes, On(type()));
  SLUICE_CHECK(all.numel() % kDrawn == 0);
  all.view({-1, kDrawn}).copy_(piece);
  return all;
}

absl::StatusOr<std::vector<double>> Machine::ByCaller(
    const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i <= kRepeats; ++i) {
    const double start = MonotonicSeconds();
    work();
    seconds.push_back(MonotonicSeconds() - start);
  }
  return seconds;
}

absl::StatusOr<std::vector<double>> Machine::ByStream(
    const std::function<void()>& work) {
  for (int i = 0; i <= kRepeats; ++i) {
    SLUICE_RETURN_IF_ERROR(timer_.Begin(stream_));
    work();
    SLUICE_RETURN_IF_ERROR(timer_.End(stream_));
  }
  SLUICE_RETURN_IF_ERROR(timer_.Await());
  std::vector<double> seconds;
  for (;;) {
    SLUICE_ASSIGN_OR_RETURN(const auto span, timer_.Next());
    if (!span.has_value()) return seconds;
    seconds.push_back(absl::ToDoubleSeconds(span->length));
  }
}

absl::StatusOr<double> Machine::Seconds(const std::function<void()>& work) {
  SLUICE_ASSIGN_OR_RETURN(auto seconds,
                          real() ? ByStream(work) : ByCaller(work));
  const auto first = seconds.begin() + 1, median = first + kRepeats / 2;
  std::nth_element(first, median, seconds.end());
  return *median;
}

// What was done in a run, and how long it took.
struct Run {
  double work = 0, seconds = 0;
};

// The rate at the first size that takes long enough, or the last that fits;
// `bytes` of operands for a size.
absl::StatusOr<double> Rate(
    const Machine& machine, int64_t size,
    const std::function<Bytes(int64_t size)>& bytes,
    const std::function<absl::StatusOr<Run>(int64_t size)>& measure) {
  for (;; size *= 2) {
    SLUICE_ASSIGN_OR_RETURN(const Run run, measure(size));
    if (run.seconds >= kEnough || !machine.HasRoom(bytes(2 * size))) {
      return run.work / run.seconds;
    }
  }
}

absl::StatusOr<Run> Matmul(Machine& machine, int64_t side) {
  SLUICE_ASSIGN_OR_RETURN(const at::Tensor a, machine.Drawn({side, side}));
  SLUICE_ASSIGN_OR_RETURN(const at::Tensor b, machine.Drawn({side, side}));
  SLUICE_ASSIGN_OR_RETURN(const double seconds,
                          machine.Seconds([&] { at::mm(a, b); }));
  const auto n = static_cast<double>(side);
  return Run{2 * n * n * n, seconds};
}

// An unmasked block of queries over keys, or its backward.
absl::StatusOr<Run> Attention(Machine& machine, int64_t rows, bool backward) {
  std::vector<at::Tensor> drawn;  // q, k, v, gradient
  for (int i = 0; i < 4; ++i) {
    SLUICE_ASSIGN_OR_RETURN(drawn.emplace_back(),
                            machine.Drawn({rows, kHeads, kDim}));
  }
  const at::Tensor &q = drawn[0], &k = drawn[1], &v = drawn[2];
  const auto zeros = [&] {
    return at::zeros({rows, kHeads, kDim}, machine.On(at::kFloat));
  };
  const runtime::RunningAttention running{
      zeros(), at::empty({kHeads, rows}, machine.On(at::kFloat))};
  using runtime::Sum;
  const auto forward = [&] {
    runtime::AttendBlock(q, k, v, false, Sum::kBegin, running);
  };
  const auto n = static_cast<double>(rows);
  const double square = 2.0 * n * n * kHeads * kDim;
  if (!backward) {
    SLUICE_ASSIGN_OR_RETURN(const double seconds, machine.Seconds(forward));
    return Run{2 * square, seconds};
  }
  forward();
  const runtime::GradientSums sums{zeros(), zeros(), zeros()};
  SLUICE_ASSIGN_OR_RETURN(const double seconds, machine.Seconds([&] {
    runtime::AttendBlockBackward({q, drawn[3], running.output, running.lse}, k,
                                 v, false, Sum::kAdd, Sum::kAdd, sums);
  }));
  return Run{5 * square, seconds};
}

absl::StatusOr<Run> CopyInMemory(Machine& machine, int64_t elements) {
  SLUICE_ASSIGN_OR_RETURN(const at::Tensor from, machine.Drawn({elements}));
  at::Tensor to = at::empty_like(from);
  SLUICE_ASSIGN_OR_RETURN(const double seconds,
                          machine.Seconds([&] { to.copy_(from); }));
  return Run{2.0 * static_cast<double>(from.nbytes()), seconds};
}

absl::Status MeasureKernels(Machine& machine, Measured& m) {
  const auto element = static_cast<int64_t>(at::elementSize(machine.type()));
  const auto squares = [&](int64_t side) {
    return Bytes(3 * side * side * element);
  };
  // Four operands, four sums in fp32.
  const auto blocks = [&](int64_t rows) {
    return Bytes(4 * rows * kHeads * kDim * (element + 4));
  };
  const auto two = [&](int64_t n) { return Bytes(2 * n * element); };
  SLUICE_ASSIGN_OR_RETURN(m.matmul_flops,
                          Rate(machine, kSide, squares, [&](int64_t side) {
                            return Matmul(machine, side);
                          }));
  SLUICE_ASSIGN_OR_RETURN(m.forward_flops,
                          Rate(machine, kRows, blocks, [&](int64_t rows) {
                            return Attention(machine, rows, /*backward=*/false);
                          }));
  SLUICE_ASSIGN_OR_RETURN(m.backward_flops,
                          Rate(machine, kRows, blocks, [&](int64_t rows) {
                            return Attention(machine, rows, /*backward=*/true);
                          }));
  int64_t elements = kStreamed;
  while (machine.real() && elements > kDrawn &&
         !machine.HasRoom(two(elements))) {
    elements /= 2;
  }
  SLUICE_ASSIGN_OR_RETURN(
      m.memory, Rate(machine, elements, two,
                     [&](int64_t n) { return CopyInMemory(machine, n); }));
  return absl::OkStatus();
}

// One size for all ranks, who measure together. A GPU's link is faster, and its
// host memory is shared.
Bytes CopiedBytes(Machine& machine) {
  runtime::RankMemory& memory = machine.memory();
  if (!machine.real()) return std::min(kCopied, memory.size());
  const Bytes share = memory.session().limits().host_total / 32;
  return std::min({16 * kCopied, memory.size() / 4, share});
}

// Of one of some copies in a row between host memory and the GPU's, from when
// compute says so until it may go on. In a row, as a step's: of one alone much
// is how long the host takes to hear that it may begin.
absl::StatusOr<double> CopySeconds(Machine& machine, client::CopyEngine& engine,
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
  if (machine.real()) {  // where the region is torch's
    on_gpu = at::empty({size.count()}, machine.On(at::kByte));
    device = static_cast<std::byte*>(on_gpu.data_ptr());
  }
  for (const auto& [direction, field] :
       {std::pair{device::CopyDirection::kHostToDevice, &Measured::h2d},
        std::pair{device::CopyDirection::kDeviceToHost, &Measured::d2h}}) {
    if (collectives != nullptr) {
      SLUICE_RETURN_IF_ERROR(collectives->Barrier());
    }
    SLUICE_ASSIGN_OR_RETURN(
        const double seconds,
        CopySeconds(machine, *engine, host->data(), device, size, direction));
    m.*field = static_cast<double>(size.count()) / seconds;
  }
  return absl::OkStatus();
}

// An all-to-all of so many elements of each rank, by what it sends to others.
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

// What a rank sends to others a second, at the first size that takes every rank
// long enough, or the last that fits on all: one size, or they would wait for
// one another.
absl::Status MeasureExchange(Machine& machine,
                             runtime::Collectives& collectives, Measured& m) {
  const auto element = static_cast<int64_t>(at::elementSize(machine.type()));
  for (int64_t elements = kExchanged;; elements *= 2) {
    SLUICE_ASSIGN_OR_RETURN(const Run run,
                            Exchange(machine, collectives, elements));
    m.exchange = run.work / run.seconds;
    m.exchanged = Bytes(elements * element);
    // Sent and received of twice as much.
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

// "1 rank", "2 ranks".
std::string Some(int count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string Toml(const Machine& machine, const Measured& m, int64_t gpus,
                 int ranks, int threads) {
  const double peak =
      std::max({m.matmul_flops, m.forward_flops, m.backward_flops});
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
      "# Measured by sluice-train profile, {0} at once, {1}.\n"
      "name = \"measured\"\nnote = \"measured on a {13} node by "
      "sluice-train profile\"\n\n[gpu]\npeak_flops = {2:.4g}\nmemory_bytes = "
      "{3:.0f}\nmemory_bytes_per_s = {4:.4g}\n\n[kernels]\nmatmul = {5:.4f}\n"
      "attention_forward = {6:.4f}\nattention_backward = {7:.4f}\n\n[node]\n"
      "gpus = {8}\n# Of the first NUMA node.\nhost_memory_bytes = {9:.0f}\n\n"
      "[links]\n# The slower direction, through the daemon's grants.\n"
      "host_bytes_per_s = {10:.4g}\n# {11}.\ngpu_bytes_per_s = {12:.4g}\n"
      "# One node: as between its GPUs.\nnetwork_bytes_per_s = {12:.4g}\n",
      Some(ranks, "rank"), what, peak, m.gpu_bytes, m.memory,
      m.matmul_flops / peak, m.forward_flops / peak, m.backward_flops / peak,
      gpus, m.host_bytes, std::min(m.h2d, m.d2h),
      alone ? "Not measured (one rank): memory's"
            : fmt::format("An all-to-all over {}, {} of each rank",
                          machine.real() ? "NCCL" : "Gloo",
                          FormatBytes(m.exchanged)),
      alone ? m.memory : m.exchange, machine.real() ? "real" : "simulated");
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
