// A program that uses the C ABI and computes on its own streams, as torch does:
//     cuda_streams SOCKET GPU [LEFT_OUT]
// It fills memory of GPU number GPU of the node on one stream, copies it away,
// fills it again, continues on another stream, and copies again. It omits the
// step LEFT_OUT: mark, wait, use or order.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "client/sluice.h"
#include "kernels/device/cuda/api.h"

namespace sluice::device::cuda {
namespace {

constexpr size_t kSize = size_t{1} << 20;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "error: %s\n", what.c_str());
  std::exit(1);
}

void Check(int status, const char* what) {
  if (status != SLUICE_OK) Fail(std::string(what) + ": " + sluice_last_error());
}

// The CUDA library that libsluice has opened, as a user's runtime opens it.
struct Cuda {
  Cuda() : library(dlopen("libcuda.so.1", RTLD_NOW)) {
    if (library == nullptr) Fail(dlerror());
  }
#define SLUICE_TEST_CALLS(name, ...)                                      \
  template <typename... Arguments>                                        \
  void name(Arguments... arguments) const {                               \
    const auto call =                                                     \
        reinterpret_cast<Result (*)(__VA_ARGS__)>(dlsym(library, #name)); \
    if (call == nullptr || call(arguments...) != kSuccess) Fail(#name);   \
  }
  SLUICE_CUDA_FUNCTIONS(SLUICE_TEST_CALLS)
#undef SLUICE_TEST_CALLS
  void* const library;
};

struct Rank {
  sluice_session* session = nullptr;
  sluice_region *gpu = nullptr, *host = nullptr;
  sluice_engine* engine = nullptr;
  std::string left_out;
  std::array<StreamPointer, 2> streams = {};
  Cuda cuda;

  bool Does(const char* step) const { return left_out != step; }
  void* data() const { return sluice_region_data(gpu); }
  std::byte* there() const {
    return static_cast<std::byte*>(sluice_region_data(host));
  }
  void Fill(int stream, unsigned char value) const {
    cuda.cuMemsetD8Async(reinterpret_cast<DevicePointer>(data()), value, kSize,
                         streams.at(stream));
  }
  // Copies the memory away after all compute so far.
  sluice_ticket CopyAway() const {
    sluice_ticket mark = 0, copied = 0;
    if (Does("mark")) Check(sluice_engine_mark_compute(engine, &mark), "mark");
    Check(sluice_engine_copy(engine, SLUICE_GPU_TO_HOST, there(), data(), kSize,
                             &mark, 1, &copied),
          "copy");
    return copied;
  }
};

void OnTwoStreams(Rank& rank) {
  sluice_engine* const engine = rank.engine;
  Check(sluice_engine_use_stream(engine, rank.streams[0]), "use");
  rank.Fill(0, 7);
  const sluice_ticket copied = rank.CopyAway();
  if (rank.Does("wait")) Check(sluice_engine_wait(engine, copied), "wait");
  rank.Fill(0, 9);

  sluice_ticket before = 0;
  Check(sluice_engine_mark_compute(engine, &before), "mark");
  if (rank.Does("use")) {
    Check(sluice_engine_use_stream(engine, rank.streams[1]), "use");
    // The stream may be destroyed now; work enqueued on it still runs. If a
    // step is left out the stream stays, as the fake driver finds no races of a
    // destroyed stream.
    if (rank.left_out.empty()) {
      rank.cuda.cuStreamDestroy_v2(std::exchange(rank.streams[0], nullptr));
    }
  }
  if (rank.Does("order")) Check(sluice_engine_wait(engine, before), "wait");
  rank.Fill(1, 11);
  Check(sluice_engine_wait(engine, rank.CopyAway()), "wait");
  Check(sluice_engine_drain(engine), "drain");
  const auto wrong =
      std::count_if(rank.there(), rank.there() + kSize,
                    [](std::byte b) { return b != std::byte{11}; });
  std::printf("%td bytes are not those of the last fill\n", wrong);
}

void Run(const char* socket, unsigned gpu, const char* left_out) {
  Rank rank = {.left_out = left_out};
  sluice_session_options options = {.size = sizeof(options)};
  options.socket = socket;
  options.gpu = gpu;
  Check(sluice_session_open(&options, &rank.session), "open");
  sluice_limits limits = {.size = sizeof(limits)};
  Check(sluice_session_limits(rank.session, &limits), "limits");
  std::printf("GPU %u of the node is %d here\n", gpu, limits.device);
  Check(sluice_region_lease(rank.session, SLUICE_GPU, kSize, &rank.gpu), "gpu");
  Check(sluice_region_lease(rank.session, SLUICE_HOST, kSize, &rank.host),
        "host");
  Check(sluice_engine_start(rank.session, &rank.engine), "engine");

  Context context = nullptr, popped = nullptr;
  rank.cuda.cuDevicePrimaryCtxRetain(&context, limits.device);
  rank.cuda.cuCtxPushCurrent_v2(context);
  for (StreamPointer& stream : rank.streams) {
    rank.cuda.cuStreamCreate(&stream, kStreamNonBlocking);
  }
  OnTwoStreams(rank);
  sluice_engine_stop(rank.engine);
  for (StreamPointer stream : rank.streams) {
    if (stream == nullptr) continue;
    rank.cuda.cuStreamSynchronize(stream);
    rank.cuda.cuStreamDestroy_v2(stream);
  }
  rank.cuda.cuCtxPopCurrent_v2(&popped);
  rank.cuda.cuDevicePrimaryCtxRelease_v2(limits.device);
  sluice_region_free(rank.host);
  sluice_region_free(rank.gpu);
  sluice_session_close(rank.session);
}

}  // namespace
}  // namespace sluice::device::cuda

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) return 2;
  sluice::device::cuda::Run(
      argv[1], static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10)),
      argc > 3 ? argv[3] : "");
  return 0;
}
