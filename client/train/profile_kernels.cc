#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <functional>
#include <vector>

#include "client/torch/math/attention_blocks.h"
#include "client/train/profile_machine.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

// The sizes measured first: large enough that no CPU kernel is dominated by its
// start, and small enough that everything takes seconds on one core. Work that
// takes less than kEnough is measured again with twice the size, if there is
// room, because a GPU is faster.
constexpr int64_t kSide = 1024;  // of the square matmul
// The size of an attention block. A GPU gets as many heads as in a run, because
// a few heads would leave part of it idle.
constexpr int64_t kRows = 1024, kGpuRows = 256;
constexpr int64_t kWidth = 256, kGpuWidth = 2048;  // heads times their size
constexpr int64_t kStreamed = 16 << 20;            // elements through memory

// Returns the rate at the first size that takes long enough, or at the last
// size that fits; `bytes` returns the operands' bytes for a size.
absl::StatusOr<double> MeasuredRate(
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

absl::StatusOr<Run> Matmul(Machine& machine, int64_t side,
                           at::ScalarType type) {
  SLUICE_ASSIGN_OR_RETURN(at::Tensor a, machine.Drawn({side, side}));
  SLUICE_ASSIGN_OR_RETURN(at::Tensor b, machine.Drawn({side, side}));
  a = a.to(type);
  b = b.to(type);
  SLUICE_ASSIGN_OR_RETURN(const double seconds,
                          machine.Seconds([&] { at::mm(a, b); }));
  const auto n = static_cast<double>(side);
  return Run{2 * n * n * n, seconds};
}

// Unmasked blocks of queries over keys, with heads of size `dim`.
struct HeadsOf {
  int64_t dim = 0, width = 0;
  int64_t heads() const { return width / dim; }
};

// Runs a block, or its backward.
absl::StatusOr<Run> Attention(Machine& machine, const HeadsOf& of, int64_t rows,
                              bool backward) {
  const std::array<int64_t, 3> sizes = {rows, of.heads(), of.dim};
  std::vector<at::Tensor> drawn;  // q, k, v, gradient
  for (int i = 0; i < 4; ++i) {
    SLUICE_ASSIGN_OR_RETURN(drawn.emplace_back(), machine.Drawn(sizes));
  }
  const at::Tensor &q = drawn[0], &k = drawn[1], &v = drawn[2];
  const auto zeros = [&] { return at::zeros(sizes, machine.On(at::kFloat)); };
  const runtime::RunningAttention running{
      zeros(), at::empty({of.heads(), rows}, machine.On(at::kFloat))};
  using runtime::Sum;
  const auto forward = [&] {
    runtime::AttendBlock(q, k, v, false, Sum::kBegin, running);
  };
  const auto n = static_cast<double>(rows);
  const double square = 2.0 * n * n * static_cast<double>(of.width);
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

absl::StatusOr<double> MatmulRate(Machine& machine, at::ScalarType type) {
  const auto bytes = static_cast<int64_t>(at::elementSize(type));
  return MeasuredRate(
      machine, kSide,
      [&](int64_t side) { return Bytes(3 * side * side * bytes); },
      [&](int64_t side) { return Matmul(machine, side, type); });
}

absl::StatusOr<double> AttentionRate(Machine& machine, int64_t dim,
                                     bool backward) {
  const HeadsOf of{dim, machine.real() ? kGpuWidth : kWidth};
  const auto element = static_cast<int64_t>(at::elementSize(machine.type()));
  // A block has four operands, and four sums in fp32.
  return MeasuredRate(
      machine, machine.real() ? kGpuRows : kRows,
      [&](int64_t rows) { return Bytes(4 * rows * of.width * (element + 4)); },
      [&](int64_t rows) { return Attention(machine, of, rows, backward); });
}

absl::Status MeasureAttention(Machine& machine, Measured& m) {
  SLUICE_ASSIGN_OR_RETURN(m.forward_flops,
                          AttentionRate(machine, kHeadDim, false));
  SLUICE_ASSIGN_OR_RETURN(m.backward_flops,
                          AttentionRate(machine, kHeadDim, true));
  SLUICE_ASSIGN_OR_RETURN(m.narrow_forward_flops,
                          AttentionRate(machine, kNarrowDim, false));
  SLUICE_ASSIGN_OR_RETURN(m.narrow_backward_flops,
                          AttentionRate(machine, kNarrowDim, true));
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureKernels(Machine& machine, Measured& m) {
  SLUICE_ASSIGN_OR_RETURN(m.matmul_flops, MatmulRate(machine, machine.type()));
  m.matmul_fp32_flops = m.matmul_flops;
  if (machine.type() != at::kFloat) {
    SLUICE_ASSIGN_OR_RETURN(m.matmul_fp32_flops,
                            MatmulRate(machine, at::kFloat));
  }
  SLUICE_RETURN_IF_ERROR(MeasureAttention(machine, m));
  const auto element = static_cast<int64_t>(at::elementSize(machine.type()));
  const auto two = [&](int64_t n) { return Bytes(2 * n * element); };
  int64_t elements = kStreamed;
  while (machine.real() && elements > Machine::kDrawn &&
         !machine.HasRoom(two(elements))) {
    elements /= 2;
  }
  SLUICE_ASSIGN_OR_RETURN(m.memory,
                          MeasuredRate(machine, elements, two, [&](int64_t n) {
                            return CopyInMemory(machine, n);
                          }));
  return absl::OkStatus();
}

}  // namespace sluice::train
