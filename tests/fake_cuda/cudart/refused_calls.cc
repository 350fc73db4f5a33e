// A table of the functions that libc10_cuda.so imports but that no program of
// ours may call. Each call is a finding: it is counted and reported on stderr,
// and the process exits with an error (tests/fake_cuda/world.h).
#include <fmt/format.h>

#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/cudart/runtime.h"

using namespace sluice::fake_cuda;  // NOLINT: only exported functions follow

// `known` is a certainty of tests/fake_cuda/rules.h, or "ours": CUDA allows the
// call, but Sluice promises not to make it.
#define SLUICE_FAKE_REFUSE(name, known, why, ...)                  \
  cudaError_t name(__VA_ARGS__) {                                  \
    fake_cuda_find(fmt::format("{}: {} ({})", #name, why, known)); \
    return LastError() = cudaErrorNotSupported;                    \
  }

namespace {

constexpr char kLease[] =
    "a GPU's memory is the lease, and no other memory is made or freed";
constexpr char kNoPools[] = "memory pools are not implemented here";
constexpr char kNoPeers[] = "peers are not implemented here";
constexpr char kNoIpc[] = "processes share memory through the driver API only";
constexpr char kNoGraphs[] = "graphs are not implemented here";
constexpr char kWholeDevice[] = "no call waits for a whole GPU";
constexpr char kBlocking[] = "no copy blocks its caller";
constexpr char kNoLookup[] = "driver functions are not looked up here";

}  // namespace

extern "C" {

// clang-format off
SLUICE_FAKE_REFUSE(cudaMallocAsync, "ours", kLease, void**, size_t,
    cudaStream_t)
SLUICE_FAKE_REFUSE(cudaFreeAsync, "ours", kLease, void*, cudaStream_t)
SLUICE_FAKE_REFUSE(cudaDeviceSynchronize, "ours", kWholeDevice)
SLUICE_FAKE_REFUSE(cudaMemcpy, "ours", kBlocking, void*, const void*, size_t,
    cudaMemcpyKind)
SLUICE_FAKE_REFUSE(cudaDeviceGetDefaultMemPool, "unmodelled", kNoPools,
    cudaMemPool_t*, int)
SLUICE_FAKE_REFUSE(cudaMemPoolGetAttribute, "unmodelled", kNoPools,
    cudaMemPool_t, cudaMemPoolAttr, void*)
SLUICE_FAKE_REFUSE(cudaMemPoolSetAttribute, "unmodelled", kNoPools,
    cudaMemPool_t, cudaMemPoolAttr, void*)
SLUICE_FAKE_REFUSE(cudaMemPoolSetAccess, "unmodelled", kNoPools, cudaMemPool_t,
    const cudaMemAccessDesc*, size_t)
SLUICE_FAKE_REFUSE(cudaMemPoolTrimTo, "unmodelled", kNoPools, cudaMemPool_t,
    size_t)
SLUICE_FAKE_REFUSE(cudaDeviceEnablePeerAccess, "unmodelled", kNoPeers, int,
    unsigned)
SLUICE_FAKE_REFUSE(cudaMemcpyPeerAsync, "unmodelled", kNoPeers, void*, int,
    const void*, int, size_t, cudaStream_t)
SLUICE_FAKE_REFUSE(cudaIpcGetMemHandle, "unmodelled", kNoIpc,
    cudaIpcMemHandle_t*, void*)
SLUICE_FAKE_REFUSE(cudaIpcOpenMemHandle, "unmodelled", kNoIpc, void**,
    cudaIpcMemHandle_t, unsigned)
SLUICE_FAKE_REFUSE(cudaIpcCloseMemHandle, "unmodelled", kNoIpc, void*)
SLUICE_FAKE_REFUSE(cudaGraphNodeGetDependencies, "unmodelled", kNoGraphs,
    cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*, size_t*)
SLUICE_FAKE_REFUSE(cudaGetDriverEntryPointByVersion, "unmodelled", kNoLookup,
    const char*, void**, unsigned, unsigned long long,
    cudaDriverEntryPointQueryResult*)
// clang-format on

}  // extern "C"
