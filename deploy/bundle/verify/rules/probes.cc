#include "deploy/bundle/verify/rules/probes.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "kernels/device/cuda/library.h"
#include "kernels/ops/gpu_kernels.h"

namespace sluice::verify {
namespace {

using namespace device::cuda;  // NOLINT: the driver's own names
using fake_cuda::Rule;

// A copy of this size still runs when the next call is made.
constexpr size_t kLong = size_t{16} << 20;
constexpr unsigned kWarp = 32;  // threads

constexpr int kNotAsked = 3;

AllocationProperties OnDevice(Device device) {
  AllocationProperties properties = {};
  properties.type = kAllocationPinned;
  properties.handle_types = kHandlePosixFd;
  properties.location = {kLocationDevice, device};
  return properties;
}

constexpr size_t kPage = 4096;

// The driver's functions, a context, a stream and memory. A failure ends the
// process with one line: the rule cannot be tested. Thread safety: one thread.
class ProbeBench {
 public:
  struct Piece {
    DevicePointer address = 0;
    size_t size = 0;
  };

  ProbeBench() {
    auto loaded = LoadedLibrary::Load("libcuda.so.1");
    if (!loaded.ok()) GiveUp(std::string(loaded.status().message()).c_str());
    library_ = *std::move(loaded);
    Must(f().cuInit(0), "cuInit");
    Must(f().cuDeviceGet(&device_, 0), "cuDeviceGet");
    Must(f().cuDevicePrimaryCtxRetain(&context_, device_), "retain");
    Must(f().cuCtxPushCurrent_v2(context_), "push");
    Must(f().cuStreamCreate(&stream_, kStreamNonBlocking), "cuStreamCreate");
    const AllocationProperties properties = OnDevice(device_);
    Must(f().cuMemGetAllocationGranularity(&granularity_, &properties,
                                           kGranularityMinimum),
         "granularity");
  }

  ProbeBench(const ProbeBench&) = delete;

  const Functions& f() const { return library_->functions(); }
  Device device() const { return device_; }
  Context context() const { return context_; }
  StreamPointer stream() const { return stream_; }
  size_t granularity() const { return granularity_; }

  // `Create` makes memory, `Reserve` a range: `units` granularities.
  MemoryHandle Create(size_t units) {
    MemoryHandle handle = 0;
    const AllocationProperties properties = OnDevice(device_);
    Must(f().cuMemCreate(&handle, units * granularity_, &properties, 0),
         "cuMemCreate");
    return handle;
  }

  DevicePointer Reserve(size_t units) {
    DevicePointer range = 0;
    Must(f().cuMemAddressReserve(&range, units * granularity_, 0, 0, 0),
         "cuMemAddressReserve");
    return range;
  }

  // Mapped and OnGpu map `bytes` or more of GPU memory. OnGpu also sets access.
  Piece Mapped(size_t bytes) {
    const size_t units = (bytes + granularity_ - 1) / granularity_;
    const Piece piece = {Reserve(units), units * granularity_};
    Must(f().cuMemMap(piece.address, piece.size, 0, Create(units), 0),
         "cuMemMap");
    return piece;
  }

  Piece OnGpu(size_t bytes) {
    const Piece piece = Mapped(bytes);
    const AccessDescription access = {{kLocationDevice, device_},
                                      kAccessReadWrite};
    Must(f().cuMemSetAccess(piece.address, piece.size, &access, 1),
         "cuMemSetAccess");
    return piece;
  }

  // Returns pageable memory that was written once.
  std::byte* Pages(size_t bytes) {
    void* const pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) GiveUp("mmap");
    std::memset(pages, 1, bytes);
    return static_cast<std::byte*>(pages);
  }

  std::byte* Pinned(size_t bytes) {
    std::byte* const pages = Pages(bytes);
    Must(f().cuMemHostRegister_v2(pages, bytes, 0), "cuMemHostRegister");
    return pages;
  }

  EventPointer NewEvent() {
    EventPointer event = nullptr;
    Must(f().cuEventCreate(&event, kEventDisableTiming), "cuEventCreate");
    return event;
  }

  // Returns the merge kernel for fp32 (kernels/ops/merge.cu).
  Kernel MergeKernel() {
    if (ops::MergeFatbin().empty()) GiveUp("this build has no device code");
    Library library = nullptr;
    Kernel kernel = nullptr;
    Must(f().cuLibraryLoadData(&library, ops::MergeFatbin().data(), nullptr,
                               nullptr, 0, nullptr, nullptr, 0),
         "cuLibraryLoadData");
    Must(f().cuLibraryGetKernel(&kernel, library, "sluice_merge_fp32"),
         "cuLibraryGetKernel");
    return kernel;
  }

  StreamPointer StreamOfSecondGpu() {
    Device second = 0;
    Context context = nullptr;
    StreamPointer stream = nullptr;
    Must(f().cuDeviceGet(&second, 1), "cuDeviceGet 1");
    Must(f().cuDevicePrimaryCtxRetain(&context, second), "retain 1");
    Must(f().cuCtxPushCurrent_v2(context), "push 1");
    Must(f().cuStreamCreate(&stream, kStreamNonBlocking), "cuStreamCreate 1");
    Must(f().cuCtxPopCurrent_v2(nullptr), "pop 1");
    return stream;
  }

  Result CopyToGpu(DevicePointer to, std::byte* from, size_t size) {
    return f().cuMemcpyAsync(to, reinterpret_cast<DevicePointer>(from), size,
                             stream_);
  }

  void Must(Result result, const char* what) const {
    if (result == kSuccess) return;
    GiveUp(
        (std::string(what) + " failed with " + std::to_string(result)).c_str());
  }

  [[noreturn]] void GiveUp(const char* why) const {
    std::fprintf(stderr, "%s\n", why);
    std::fflush(nullptr);
    _exit(kNotAsked);
  }

 private:
  std::unique_ptr<LoadedLibrary> library_;
  Device device_ = 0;
  Context context_ = nullptr;
  StreamPointer stream_ = nullptr;
  size_t granularity_ = 0;
};

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

// Merges two elements, one of which has its log-sum-exp in pageable memory. The
// kernel always reads it, so waiting for the stream finds the error.
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
  // False if the probe destroys the stream's context. A call with the stream is
  // then undefined (an H100's driver, 580.159.04, crashed).
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
    // Printed at once: the next call may crash the process.
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
