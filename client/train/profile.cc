#include "client/train/profile.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "client/copy/copy_engine.h"
#include "client/torch/math/attention_blocks.h"
#include "client/torch/placement.h"
#include "client/train/launch/outcome.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

// Large enough that no kernel is bound by its start, small enough that all of
// it takes seconds on one core.
constexpr int64_t kSide = 1024;  // of the square matmul
constexpr int64_t kRows = 1024;  // of an attention block
constexpr int64_t kHeads = 4, kDim = 64;
constexpr Bytes kCopied = MiB(16);       // a copy over a link
constexpr int64_t kStreamed = 16 << 20;  // elements through memory
constexpr int64_t kExchanged = 1 << 20;  // elements a rank, all-to-all
constexpr int kRepeats = 5;

// Averages over the ranks; the order is that of the sum's tensor.
struct Measured {
  double matmul_flops = 0, forward_flops = 0, backward_flops = 0;
  double memory = 0, h2d = 0, d2h = 0, exchange = 0;  // bytes per second
  double gpu_bytes = 0, host_bytes = 0;
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

// The median of some runs, the first left out (it warms up).
double Seconds(const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i <= kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> taken =
        std::chrono::steady_clock::now() - start;
    if (i > 0) seconds.push_back(taken.count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRepeats / 2,
                   seconds.end());
  return seconds[kRepeats / 2];
}

void MeasureKernels(at::Device device, Measured& m) {
  const at::TensorOptions float32 = runtime::On(device, at::kFloat);
  const at::Tensor a = at::randn({kSide, kSide}, float32);
  const at::Tensor b = at::randn({kSide, kSide}, float32);
  const double matmul = 2.0 * kSide * kSide * kSide;
  m.matmul_flops = matmul / Seconds([&] { at::mm(a, b); });

  const auto rows = [&] { return at::randn({kRows, kHeads, kDim}, float32); };
  const at::Tensor q = rows(), k = rows(), v = rows(), gradient = rows();
  const double square = 2.0 * kRows * kRows * kHeads * kDim;
  const runtime::RunningAttention running{at::empty_like(q),
                                          at::empty({kHeads, kRows}, float32)};
  using runtime::Sum;
  m.forward_flops =
      2 * square / Seconds([&] {
        runtime::AttendBlock(q, k, v, false, Sum::kBegin, running);
      });
  const runtime::GradientSums sums{at::zeros_like(q), at::zeros_like(k),
                                   at::zeros_like(v)};
  m.backward_flops =
      5 * square / Seconds([&] {
        runtime::AttendBlockBackward({q, gradient, running.output, running.lse},
                                     k, v, false, Sum::kAdd, Sum::kAdd, sums);
      });

  const at::Tensor from = at::randn({kStreamed}, float32);
  at::Tensor to = at::empty({kStreamed}, float32);
  m.memory = 2.0 * kStreamed * 4 / Seconds([&] { to.copy_(from); });
}

absl::Status MeasureCopies(runtime::RankMemory& memory,
                           runtime::Collectives* collectives, Measured& m) {
  client::Session& session = memory.session();
  const Bytes size = std::min(kCopied, memory.size());
  SLUICE_ASSIGN_OR_RETURN(const auto host, session.LeaseHost(size));
  client::CopyEngine::Options options;
  options.driver = &session.driver();
  options.device = session.limits().device;
  options.gate = &session.grants();
  SLUICE_ASSIGN_OR_RETURN(const auto engine,
                          client::CopyEngine::Start(options));
  std::byte* const device = memory.data();
  const std::tuple<device::CopyDirection, std::byte*, std::byte*,
                   double Measured::*>
      ways[] = {{device::CopyDirection::kHostToDevice, device, host->data(),
                 &Measured::h2d},
                {device::CopyDirection::kDeviceToHost, host->data(), device,
                 &Measured::d2h}};
  for (const auto& [direction, to, from, field] : ways) {
    if (collectives != nullptr) {
      SLUICE_RETURN_IF_ERROR(collectives->Barrier());
    }
    absl::Status status;
    const double seconds =
        Seconds([&, &to = to, &from = from, &direction = direction] {
          engine->Enqueue({.direction = direction,
                           .pieces = {{to, from, size}},
                           .after = {},
                           .label = "profile"});
          status.Update(engine->Drain());
        });
    SLUICE_RETURN_IF_ERROR(status);
    m.*field = static_cast<double>(size.count()) / seconds;
  }
  return absl::OkStatus();
}

// What a rank sends to others a second in an all-to-all.
absl::Status MeasureExchange(runtime::Collectives& collectives,
                             at::Device device, Measured& m) {
  const at::TensorOptions float32 = runtime::On(device, at::kFloat);
  const int64_t ranks = collectives.world_size();
  const std::vector<int64_t> counts(static_cast<size_t>(ranks),
                                    kExchanged / ranks);
  const at::Tensor send = at::randn({kExchanged / ranks * ranks}, float32);
  at::Tensor receive = at::empty({kExchanged / ranks * ranks}, float32);
  absl::Status status;
  const double seconds = Seconds([&] {
    status.Update(collectives.AllToAll(receive, counts, send, counts));
  });
  const double sent = 4.0 * static_cast<double>(counts[0] * (ranks - 1));
  m.exchange = sent / seconds;
  return status;
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

std::string Toml(const Measured& m, int64_t gpus, int ranks, int threads) {
  const double peak =
      std::max({m.matmul_flops, m.forward_flops, m.backward_flops});
  const bool alone = ranks == 1;
  return fmt::format(
      "# Measured by sluice-train profile, {0} at once, {1} each, fp32.\n# A "
      "SIMULATED node: the kernels are the CPU's, the peak is "
      "the best rate\n# that one of them reached, the links are sim's.\n"
      "name = \"measured\"\nnote = \"measured on a simulated node by "
      "sluice-train profile\"\n\n[gpu]\npeak_flops = {2:.4g}\nmemory_bytes = "
      "{3:.0f}\nmemory_bytes_per_s = {4:.4g}\n\n[kernels]\nmatmul = {5:.4f}\n"
      "attention_forward = {6:.4f}\nattention_backward = {7:.4f}\n\n[node]\n"
      "gpus = {8}\n# Of the first NUMA node.\nhost_memory_bytes = {9:.0f}\n\n"
      "[links]\n# The slower direction, through the daemon's grants.\n"
      "host_bytes_per_s = {10:.4g}\n# {11}\ngpu_bytes_per_s = {12:.4g}\n"
      "# One node: as between its GPUs.\nnetwork_bytes_per_s = {12:.4g}\n",
      Some(ranks, "rank"), Some(threads, "thread"), peak, m.gpu_bytes, m.memory,
      m.matmul_flops / peak, m.forward_flops / peak, m.backward_flops / peak,
      gpus, m.host_bytes, std::min(m.h2d, m.d2h),
      alone ? "Not measured (one rank): memory's." : "An all-to-all over Gloo.",
      alone ? m.memory : m.exchange);
}

}  // namespace

absl::Status MeasureMachine(const RunOptions& options,
                            runtime::RankMemory& memory,
                            runtime::Collectives* collectives,
                            std::string* toml) {
  const client::NodeLimits limits = memory.session().limits();
  // Its clock is the CPU's, which on a GPU sees work issued, not done.
  if (!memory.device().is_cpu()) {
    return BadInput(fmt::format(
        "profile measures simulated nodes, and this node's driver is \"{}\": "
        "bundle/verify measures a real one (deploy/bundle)",
        limits.driver));
  }
  Measured measured;
  measured.gpu_bytes = static_cast<double>(limits.gpu_total.count());
  measured.host_bytes = static_cast<double>(limits.host_total.count());
  MeasureKernels(memory.device(), measured);
  SLUICE_RETURN_IF_ERROR(MeasureCopies(memory, collectives, measured));
  if (collectives != nullptr) {
    SLUICE_RETURN_IF_ERROR(
        MeasureExchange(*collectives, memory.device(), measured));
    SLUICE_RETURN_IF_ERROR(Average(*collectives, measured));
  }
  SLUICE_ASSIGN_OR_RETURN(const auto gpus, client::ListGpus(options.socket));
  *toml = Toml(measured, std::ssize(gpus), options.ranks, options.threads);
  return absl::OkStatus();
}

}  // namespace sluice::train
