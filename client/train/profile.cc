// `sluice-train profile`. All ranks measure at once, so links are measured as
// in a step. A GPU's kernels run in bf16 and are timed by the stream's clock. A
// simulated node's kernels run in fp32 and are timed by the host's clock.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "client/copy/copy_engine.h"
#include "client/torch/math/attention_blocks.h"
#include "client/torch/placement.h"
#include "client/torch/run/agreement.h"
#include "client/train/rank.h"
#include "client/train/watch/rank_page.h"
#include "kernels/device/stream_timer.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

// The head dimensions with which attention is measured: a usual one, and a
// narrow one, which is slower on a GPU (planner/train/hardware.h).
constexpr int64_t kHeadDim = 128, kNarrowDim = 64;

// A rank's figures by name, or averages over ranks: FLOPs per second of
// kernels, bytes per second of memory and links, sizes in bytes.
using Figures = std::map<std::string, double>;

struct Run {
  double work = 0, seconds = 0;
  double rate() const { return work / seconds; }
};
// A shorter run is measured again at twice the size, if there is room, because
// the start of the kernel takes too large a part of it.
constexpr double kEnough = 2e-3;  // seconds

// The measured device: the CPU in fp32, or a GPU in bf16.
class Machine {
 public:
  explicit Machine(runtime::RankMemory& memory)
      : memory_(memory), timer_(&memory.session().driver()) {}

  // On a GPU, makes torch allocate from `memory`, and times by torch's stream.
  absl::Status Begin() {
    if (!real()) return absl::OkStatus();
    SLUICE_RETURN_IF_ERROR(memory_.Arm());
    SLUICE_ASSIGN_OR_RETURN(stream_, memory_.ComputeStream());
    return absl::OkStatus();
  }

  bool real() const { return memory_.device().is_cuda(); }
  runtime::RankMemory& memory() { return memory_; }
  at::TensorOptions On(at::ScalarType type) const {
    return runtime::On(memory_.device(), type);
  }
  at::ScalarType type() const { return real() ? at::kBFloat16 : at::kFloat; }
  std::string attention() const { return memory_.KernelName(type(), kHeadDim); }
  // Leaves half of the memory for what kernels need besides their operands.
  bool HasRoom(Bytes bytes) const { return bytes <= memory_.size() / 2; }

  int64_t element_bytes() const {
    return static_cast<int64_t>(at::elementSize(type()));
  }
  // Returns kDrawn normally distributed numbers, repeated to fill `sizes`.
  static constexpr int64_t kDrawn = 1 << 18;
  absl::StatusOr<at::Tensor> Drawn(at::IntArrayRef sizes);
  // Returns the median time of several runs of `body`, without the first, which
  // warms up.
  absl::StatusOr<Run> Time(double work, const std::function<void()>& body);

 private:
  runtime::RankMemory& memory_;
  device::StreamTimer timer_;
  device::Stream stream_;
};

absl::StatusOr<at::Tensor> Machine::Drawn(at::IntArrayRef sizes) {
  const at::Tensor host =
      at::randn({kDrawn}, runtime::OnHost(at::kFloat)).to(type());
  at::Tensor piece = at::empty({kDrawn}, On(type()));
  SLUICE_RETURN_IF_ERROR(memory_.stage().Write(piece, host.const_data_ptr()));
  at::Tensor all = at::empty(sizes, On(type()));
  all.view({-1, kDrawn}).copy_(piece);
  return all;
}

absl::StatusOr<Run> Machine::Time(double work,
                                  const std::function<void()>& body) {
  constexpr int kRepeats = 5;
  std::vector<double> seconds;
  for (int i = 0; i <= kRepeats; ++i) {
    if (real()) SLUICE_RETURN_IF_ERROR(timer_.Begin(stream_));
    const double start = MonotonicSeconds();
    body();
    if (!real()) seconds.push_back(MonotonicSeconds() - start);
    if (real()) SLUICE_RETURN_IF_ERROR(timer_.End(stream_));
  }
  if (real()) SLUICE_RETURN_IF_ERROR(timer_.Await());
  while (real()) {
    SLUICE_ASSIGN_OR_RETURN(const auto span, timer_.Next());
    if (!span.has_value()) break;
    seconds.push_back(absl::ToDoubleSeconds(span->length));
  }
  const auto first = seconds.begin() + 1, median = first + kRepeats / 2;
  std::nth_element(first, median, seconds.end());
  return Run{work, *median};
}

// The first sizes are so large that a CPU kernel's start does not dominate, and
// so small that the profile takes seconds on one core.
constexpr int64_t kSide = 1024;  // of the square matmul
// The size of an attention block. A GPU gets as many heads as in a run, because
// a few heads would leave part of it idle.
constexpr int64_t kRows = 1024, kGpuRows = 256;
constexpr int64_t kWidth = 256, kGpuWidth = 2048;  // heads times their size
constexpr int64_t kStreamed = 16 << 20;            // elements through memory

// Returns the rate at the first size that takes long enough, or at the last
// size that fits; `bytes` returns the operands' bytes for a size.
absl::StatusOr<double> MeasuredRate(const Machine& machine, int64_t size,
                                    auto bytes, auto measure) {
  for (;; size *= 2) {
    SLUICE_ASSIGN_OR_RETURN(const Run run, measure(size));
    if (run.seconds >= kEnough || !machine.HasRoom(bytes(2 * size))) {
      return run.rate();
    }
  }
}

absl::StatusOr<Run> Matmul(Machine& machine, int64_t side,
                           at::ScalarType type) {
  SLUICE_ASSIGN_OR_RETURN(at::Tensor a, machine.Drawn({side, side}));
  SLUICE_ASSIGN_OR_RETURN(at::Tensor b, machine.Drawn({side, side}));
  a = a.to(type);
  b = b.to(type);
  const auto n = static_cast<double>(side);
  return machine.Time(2 * n * n * n, [&] { at::mm(a, b); });
}

// Runs an unmasked block of queries over keys, or its backward.
absl::StatusOr<Run> Attention(Machine& machine, int64_t width, int64_t dim,
                              int64_t rows, bool backward) {
  const int64_t heads = width / dim;
  const std::array<int64_t, 3> sizes = {rows, heads, dim};
  std::vector<at::Tensor> drawn;  // q, k, v, gradient
  for (int i = 0; i < 4; ++i) {
    SLUICE_ASSIGN_OR_RETURN(drawn.emplace_back(), machine.Drawn(sizes));
  }
  const at::Tensor &q = drawn[0], &k = drawn[1], &v = drawn[2];
  const auto zeros = [&] { return at::zeros(sizes, machine.On(at::kFloat)); };
  const runtime::RunningAttention running{
      zeros(), at::empty({heads, rows}, machine.On(at::kFloat))};
  using runtime::Sum;
  const auto forward = [&] {
    runtime::AttendBlock(q, k, v, false, Sum::kBegin, running);
  };
  const auto n = static_cast<double>(rows);
  const double square = 2.0 * n * n * static_cast<double>(width);
  if (!backward) return machine.Time(2 * square, forward);
  forward();
  const runtime::GradientSums sums{zeros(), zeros(), zeros()};
  return machine.Time(5 * square, [&] {
    runtime::AttendBlockBackward({q, drawn[3], running.output, running.lse}, k,
                                 v, false, Sum::kAdd, Sum::kAdd, sums);
  });
}

absl::StatusOr<Run> CopyInMemory(Machine& machine, int64_t elements) {
  SLUICE_ASSIGN_OR_RETURN(const at::Tensor from, machine.Drawn({elements}));
  at::Tensor to = at::empty_like(from);
  return machine.Time(2.0 * static_cast<double>(from.nbytes()),
                      [&] { to.copy_(from); });
}

absl::StatusOr<double> MatmulRate(Machine& machine, at::ScalarType type) {
  const auto bytes = static_cast<int64_t>(at::elementSize(type));
  return MeasuredRate(
      machine, kSide,
      [&](int64_t side) { return Bytes(3 * side * side * bytes); },
      [&](int64_t side) { return Matmul(machine, side, type); });
}

absl::StatusOr<double> AttentionRate(Machine& machine, int64_t dim,
                                     bool backward) {
  const int64_t width = machine.real() ? kGpuWidth : kWidth;
  // A block has four operands, and four sums in fp32.
  const int64_t row_bytes = 4 * width * (machine.element_bytes() + 4);
  return MeasuredRate(
      machine, machine.real() ? kGpuRows : kRows,
      [&](int64_t rows) { return Bytes(rows * row_bytes); },
      [&](int64_t rows) {
        return Attention(machine, width, dim, rows, backward);
      });
}

absl::Status MeasureKernels(Machine& machine, Figures& m) {
  SLUICE_ASSIGN_OR_RETURN(m["matmul"], MatmulRate(machine, machine.type()));
  m["matmul_fp32"] = m["matmul"];
  if (machine.type() != at::kFloat) {
    SLUICE_ASSIGN_OR_RETURN(m["matmul_fp32"], MatmulRate(machine, at::kFloat));
  }
  for (const auto& [name, dim, backward] :
       {std::tuple("forward", kHeadDim, false),
        {"backward", kHeadDim, true},
        {"forward_64", kNarrowDim, false},
        {"backward_64", kNarrowDim, true}}) {
    SLUICE_ASSIGN_OR_RETURN(m[name], AttentionRate(machine, dim, backward));
  }
  const auto two = [&](int64_t n) {
    return Bytes(2 * n * machine.element_bytes());
  };
  int64_t elements = kStreamed;
  while (machine.real() && elements > Machine::kDrawn &&
         !machine.HasRoom(two(elements))) {
    elements /= 2;
  }
  SLUICE_ASSIGN_OR_RETURN(m["memory"],
                          MeasuredRate(machine, elements, two, [&](int64_t n) {
                            return CopyInMemory(machine, n);
                          }));
  return absl::OkStatus();
}

constexpr Bytes kCopied = MiB(16);       // a copy over a link
constexpr int kInARow = 4;               // copies in a row
constexpr int64_t kExchanged = 1 << 20;  // elements of a rank's all-to-all

// Times several copies in a row, as in a step, from their request until compute
// may continue. A single copy's time would mostly be the wait for its start.
absl::StatusOr<Run> Copies(Machine& machine, client::CopyEngine& engine,
                           std::byte* host, std::byte* device, Bytes size,
                           device::CopyDirection direction) {
  const bool in = direction == device::CopyDirection::kHostToDevice;
  const client::CopyPiece piece{in ? device : host, in ? host : device, size};
  absl::Status status;
  const auto run =
      machine.Time(static_cast<double>((kInARow * size).count()), [&] {
        const client::Ticket begin = engine.MarkCompute();
        client::Ticket last;
        for (int i = 0; i < kInARow; ++i) {
          last = engine.Enqueue({.direction = direction,
                                 .pieces = {piece},
                                 .after = {begin},
                                 .label = "profile"});
        }
        status.Update(engine.Wait(last));
      });
  status.Update(engine.Drain());
  SLUICE_RETURN_IF_ERROR(status);
  return run;
}

absl::Status MeasureCopies(Machine& machine, runtime::Collectives* collectives,
                           Figures& m) {
  runtime::RankMemory& memory = machine.memory();
  SLUICE_ASSIGN_OR_RETURN(const auto engine,
                          memory.StartCopies(/*timeline=*/false));
  // One size for all ranks, because they measure together. GPUs copy more,
  // because their links are faster.
  const Bytes size = machine.real()
                         ? std::min({16 * kCopied, memory.size() / 4,
                                     memory.session().limits().host_total / 32})
                         : std::min(kCopied, memory.size());
  SLUICE_ASSIGN_OR_RETURN(const auto host, memory.LeaseHost(size));
  at::Tensor on_gpu;
  std::byte* device = memory.data();
  if (machine.real()) {  // torch's allocator owns the region
    on_gpu = at::empty({size.count()}, machine.On(at::kByte));
    device = static_cast<std::byte*>(on_gpu.data_ptr());
  }
  for (const auto& [direction, name] :
       {std::pair{device::CopyDirection::kHostToDevice, "h2d"},
        std::pair{device::CopyDirection::kDeviceToHost, "d2h"}}) {
    if (collectives != nullptr) SLUICE_RETURN_IF_ERROR(collectives->Barrier());
    SLUICE_ASSIGN_OR_RETURN(
        const Run run,
        Copies(machine, *engine, host->data(), device, size, direction));
    m[name] = run.rate();
  }
  return absl::OkStatus();
}

// Runs an all-to-all of `elements` per rank; counts bytes sent to other ranks.
absl::StatusOr<Run> Exchange(Machine& machine,
                             runtime::Collectives& collectives,
                             int64_t elements) {
  const int64_t ranks = collectives.world_size();
  const std::vector<int64_t> counts(static_cast<size_t>(ranks),
                                    elements / ranks);
  SLUICE_ASSIGN_OR_RETURN(const at::Tensor drawn, machine.Drawn({elements}));
  const at::Tensor send = drawn.narrow(0, 0, elements / ranks * ranks);
  at::Tensor receive = at::empty_like(send);
  const auto sent =
      static_cast<double>(send.element_size() * counts[0] * (ranks - 1));
  absl::Status status;
  const auto run = machine.Time(sent, [&] {
    status.Update(collectives.AllToAll(receive, counts, send, counts));
  });
  if (run.ok() && machine.real()) status.Update(collectives.Check());
  SLUICE_RETURN_IF_ERROR(status);
  return run;
}

// Measures at the first size that takes every rank long enough, or at the last
// size that fits on all ranks. Returns the bytes of a rank, which are equal on
// all ranks, because all take part in an all-to-all.
absl::StatusOr<Bytes> MeasureExchange(Machine& machine,
                                      runtime::Collectives& collectives,
                                      Figures& m) {
  for (int64_t elements = kExchanged;; elements *= 2) {
    SLUICE_ASSIGN_OR_RETURN(const Run run,
                            Exchange(machine, collectives, elements));
    m["exchange"] = run.rate();
    const Bytes bytes(elements * machine.element_bytes());
    // The next size is twice as large, and is both sent and received.
    const double full = machine.HasRoom(4 * bytes) ? 0 : 1;
    SLUICE_ASSIGN_OR_RETURN(
        const std::vector<double> worst,
        runtime::WorstOfRanks(&collectives, {full, -run.seconds}));
    if (worst[0] > 0 || -worst[1] >= kEnough) return bytes;
  }
}

absl::Status Average(runtime::Collectives& collectives, Figures& m) {
  at::Tensor sums = at::empty({std::ssize(m)}, runtime::OnHost(at::kDouble));
  double* at = sums.data_ptr<double>();
  for (const auto& [name, value] : m) *at++ = value;
  SLUICE_RETURN_IF_ERROR(collectives.SumAll(sums));
  at = sums.data_ptr<double>();
  for (auto& [name, value] : m) value = *at++ / collectives.world_size();
  return absl::OkStatus();
}

// `exchanged` is the bytes of each rank in the all-to-all.
std::string Toml(const Machine& machine, const Figures& m, Bytes exchanged,
                 int64_t gpus, int ranks, int threads) {
  double peak = 0;
  for (const char* kernel : {"matmul", "matmul_fp32", "forward", "backward",
                             "forward_64", "backward_64"}) {
    peak = std::max(peak, m.at(kernel));
  }
  const auto part = [&](const char* kernel) { return m.at(kernel) / peak; };
  const bool alone = ranks == 1;
  const double between = m.at(alone ? "memory" : "exchange");
  const std::string what =
      machine.real()
          ? fmt::format(
                "bf16, attention by {},\n# by the GPU's clock. The peak is the "
                "best rate that one of the kernels\n# reached",
                machine.attention())
          : fmt::format(
                "{} each, fp32.\n# A SIMULATED node: the kernels are the "
                "CPU's, the peak is the best rate\n# that one of them reached, "
                "the links are sim's",
                Counted(threads, "thread"));
  return fmt::format(
      "# Measured by sluice-train profile, {} at once, {}.\n"
      "name = \"measured\"\nnote = \"measured on a {} node by "
      "sluice-train profile\"\n\n[gpu]\npeak_flops = {:.4g}\n"
      "memory_bytes = {:.0f}\nmemory_bytes_per_s = {:.4g}\n\n"
      "[kernels]\nmatmul = {:.4f}\n# Of fp32 tensors, as gradients of weights "
      "are.\nmatmul_fp32 = {:.4f}\n# Over heads of attention_head_dim, and of "
      "64.\nattention_head_dim = {}\nattention_forward = {:.4f}\n"
      "attention_backward = {:.4f}\nattention_forward_64 = {:.4f}\n"
      "attention_backward_64 = {:.4f}\n"
      "\n[node]\ngpus = {}\n# Of the first NUMA node.\n"
      "host_memory_bytes = {:.0f}\n\n[links]\n# The slower direction, "
      "through the daemon's grants.\nhost_bytes_per_s = {:.4g}\n# {}.\n"
      "gpu_bytes_per_s = {:.4g}\n# One node: as between its GPUs.\n"
      "network_bytes_per_s = {:.4g}\n",
      Counted(ranks, "rank"), what, machine.real() ? "real" : "simulated", peak,
      m.at("gpu_bytes"), m.at("memory"), part("matmul"), part("matmul_fp32"),
      kHeadDim, part("forward"), part("backward"), part("forward_64"),
      part("backward_64"), gpus, m.at("host_bytes"),
      std::min(m.at("h2d"), m.at("d2h")),
      alone ? "Not measured (one rank): memory's"
            : fmt::format("An all-to-all over {}, {} of each rank",
                          machine.real() ? "NCCL" : "Gloo",
                          FormatBytes(exchanged)),
      between, between);
}

}  // namespace

absl::Status MeasureMachine(const RunOptions& options,
                            runtime::RankMemory& memory,
                            runtime::Collectives* collectives,
                            std::string* toml) {
  const client::NodeLimits limits = memory.session().limits();
  Machine machine(memory);
  SLUICE_RETURN_IF_ERROR(machine.Begin());
  Figures measured = {
      {"gpu_bytes", static_cast<double>(limits.gpu_total.count())},
      {"host_bytes", static_cast<double>(limits.host_total.count())},
      {"exchange", 0}};
  SLUICE_RETURN_IF_ERROR(MeasureKernels(machine, measured));
  SLUICE_RETURN_IF_ERROR(MeasureCopies(machine, collectives, measured));
  Bytes exchanged;
  if (collectives != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(exchanged,
                            MeasureExchange(machine, *collectives, measured));
    SLUICE_RETURN_IF_ERROR(Average(*collectives, measured));
  }
  SLUICE_ASSIGN_OR_RETURN(const auto gpus, client::ListGpus(options.socket));
  *toml = Toml(machine, measured, exchanged, std::ssize(gpus), options.ranks,
               options.threads);
  return absl::OkStatus();
}

}  // namespace sluice::train
