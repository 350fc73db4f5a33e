#include "deploy/bundle/verify/rules/probes.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "deploy/bundle/verify/rules/probe_bench.h"
#include "kernels/ops/gpu_kernels.h"

namespace sluice::verify {
namespace {

using namespace device::cuda;  // NOLINT: the driver's own names
using fake_cuda::Rule;

// A copy of this size still runs when the next call is made.
constexpr size_t kLong = size_t{16} << 20;
constexpr unsigned kWarp = 32;  // threads

Result NotForked(ProbeBench& bench) {
  int ends[2];
  if (pipe(ends) != 0) bench.GiveUp("pipe");
  const pid_t child = fork();
  if (child == 0) {
    Context context = nullptr;
    const Result said = bench.f().cuCtxGetCurrent(&context);
    _exit(write(ends[1], &said, sizeof(said)) == sizeof(said) ? 0 : 1);
  }
  close(ends[1]);
  Result said = 0;
  const bool told = read(ends[0], &said, sizeof(said)) == sizeof(said);
  waitpid(child, nullptr, 0);
  if (!told) bench.GiveUp("the child ended without an answer");
  return said;
}

Result ReleaseNeedsContext(ProbeBench& bench) {
  const EventPointer event = bench.NewEvent();
  bench.Must(bench.f().cuCtxPopCurrent_v2(nullptr), "cuCtxPopCurrent");
  const Result said = bench.f().cuEventDestroy_v2(event);
  bench.Must(bench.f().cuCtxPushCurrent_v2(bench.context()), "push");
  return said;
}

Result EmptyContext(ProbeBench& bench) {
  bench.NewEvent();
  return bench.f().cuDevicePrimaryCtxRelease_v2(bench.device());
}

Result WholeMemory(ProbeBench& bench) {
  const MemoryHandle memory = bench.Create(2);
  const DevicePointer range = bench.Reserve(2);
  return bench.f().cuMemMap(range, bench.granularity(), 0, memory, 0);
}

Result UnmapIdle(ProbeBench& bench) {
  const auto piece = bench.OnGpu(kLong);
  bench.Must(bench.CopyToGpu(piece.address, bench.Pinned(kLong), kLong),
             "copy");
  return bench.f().cuMemUnmap(piece.address, piece.size);
}

Result FreeUnmapped(ProbeBench& bench) {
  const auto piece = bench.OnGpu(1);
  return bench.f().cuMemAddressFree(piece.address, piece.size);
}

Result RegisterWritable(ProbeBench& bench) {
  void* const page =
      mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return bench.f().cuMemHostRegister_v2(page, kPage, 0);
}

Result UnregisterIdle(ProbeBench& bench) {
  const auto piece = bench.OnGpu(kLong);
  std::byte* const host = bench.Pinned(kLong);
  bench.Must(bench.CopyToGpu(piece.address, host, kLong), "copy");
  return bench.f().cuMemHostUnregister(host);
}

Result StreamOfContext(ProbeBench& bench) {
  const auto piece = bench.OnGpu(1);
  const StreamPointer other = bench.StreamOfSecondGpu();
  std::byte* const host = bench.Pinned(kPage);
  return bench.f().cuMemcpyAsync(
      piece.address, reinterpret_cast<DevicePointer>(host), kPage, other);
}

Result CopyAccess(ProbeBench& bench) {
  const auto piece = bench.Mapped(1);  // memory without access rights
  return bench.CopyToGpu(piece.address, bench.Pinned(kPage), kPage);
}

Result CopyOneRegistration(ProbeBench& bench) {
  const auto piece = bench.OnGpu(1);
  std::byte* const host = bench.Pages(2 * kPage);
  bench.Must(bench.f().cuMemHostRegister_v2(host, kPage, 0), "register");
  bench.Must(bench.f().cuMemHostRegister_v2(host + kPage, kPage, 0),
             "register");
  return bench.CopyToGpu(piece.address, host, 2 * kPage);
}

// Merges two elements. The log-sum-exp of one lies in pageable memory, and the
// kernel always reads it. If the launch succeeds, the error is found by waiting
// for the stream.
Result OperationPinned(ProbeBench& bench) {
  constexpr ops::RowHeadStrides kOne = {1, 1};
  ops::MergeShape shape = {1, 1, 1, kOne, kOne, kOne, kOne};
  DevicePointer o = bench.OnGpu(1).address;
  DevicePointer lse = o + sizeof(float), block_o = lse + sizeof(float);
  auto block_lse = reinterpret_cast<DevicePointer>(bench.Pages(kPage));
  void* arguments[] = {&shape, &o, &lse, &block_o, &block_lse};
  return bench.f().cuLaunchKernel(bench.MergeKernel(), 1, 1, 1, kWarp, 1, 1, 0,
                                  bench.stream(), arguments, nullptr);
}

Result FillPinned(ProbeBench& bench) {
  return bench.f().cuMemsetD8Async(
      reinterpret_cast<DevicePointer>(bench.Pages(kPage)), 1, kPage,
      bench.stream());
}

constexpr struct {
  Rule rule;
  Result (*ask)(ProbeBench&);
  int gpus = 1;
  // False: the stream was destroyed with its context. A call with that stream
  // is undefined (an H100's driver, 580.159.04, crashed).
  bool leaves_stream = true;
} kProbes[] = {
    {Rule::kNotForked, NotForked},
    {Rule::kReleaseNeedsContext, ReleaseNeedsContext},
    {Rule::kEmptyContext, EmptyContext, 1, /*leaves_stream=*/false},
    {Rule::kWholeMemory, WholeMemory},
    {Rule::kUnmapIdle, UnmapIdle},
    {Rule::kFreeUnmapped, FreeUnmapped},
    {Rule::kRegisterWritable, RegisterWritable},
    {Rule::kUnregisterIdle, UnregisterIdle},
    {Rule::kStreamOfContext, StreamOfContext, 2},
    {Rule::kCopyAccess, CopyAccess},
    {Rule::kCopyOneRegistration, CopyOneRegistration},
    {Rule::kOperationPinned, OperationPinned},
    {Rule::kFillPinned, FillPinned},
};

}  // namespace

std::optional<int> GpusFor(Rule rule) {
  for (const auto& probe : kProbes) {
    if (probe.rule == rule) return probe.gpus;
  }
  return std::nullopt;
}

int AskRule(const std::string& name) {
  for (const auto& probe : kProbes) {
    if (TextOf(probe.rule).name != name) continue;
    ProbeBench bench;
    // The answer is printed at once, because the next call may crash the
    // process.
    std::printf("%s %d", name.c_str(), probe.ask(bench));
    std::fflush(stdout);
    if (probe.leaves_stream) {
      std::printf(" %d", bench.f().cuStreamSynchronize(bench.stream()));
      std::fflush(stdout);
    }
    // Nothing is freed: the driver's state may be broken.
    return 0;
  }
  std::fprintf(stderr, "no probe of rule %s\n", name.c_str());
  return 2;
}

}  // namespace sluice::verify
