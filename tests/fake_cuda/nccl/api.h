// NCCL's functions as libtorch_cuda 2.11 imports them, with the binary
// interface of nccl.h 2.28.9, so that a machine without that header can build
// this library. If the header is found, header_check.cc compares the two.
#pragma once

#include <cstddef>

namespace sluice::fake_nccl {

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
enum DataType : int {
  kInt8,
  kUint8,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kFloat32,
  kFloat64,
  kBfloat16,
  kFloat8e4m3,
  kFloat8e5m2,
  kDataTypes
};
enum Reduction : int { kSum, kProduct, kMax, kMin, kAverage, kReductions };

struct UniqueId {
  char internal[128];
};
struct Config {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cga_cluster_size;
  int min_ctas;
  int max_ctas;
  const char* net_name;
  int split_share;
  int traffic_class;
  const char* name;
  // More fields follow, which no program sets here.
};
inline constexpr unsigned kConfigMagic = 0xcafebeef;
inline constexpr int kVersion = 22809;

class Communicator;
using Stream = void*;

}  // namespace sluice::fake_nccl

// The implemented functions: X(name, its parameters).
// clang-format off
#define SLUICE_FAKE_NCCL_FUNCTIONS(X) \
  X(ncclGetVersion, int* version) \
  X(ncclGetUniqueId, UniqueId* id) \
  X(ncclCommInitRank, Communicator** made, int ranks, UniqueId id, int rank) \
  X(ncclCommInitRankConfig, Communicator** made, int ranks, UniqueId id, int rank, Config* config) \
  X(ncclCommFinalize, Communicator* communicator) \
  X(ncclCommDestroy, Communicator* communicator) \
  X(ncclCommAbort, Communicator* communicator) \
  X(ncclCommGetAsyncError, Communicator* communicator, Result* error) \
  X(ncclCommCount, Communicator* communicator, int* count) \
  X(ncclCommCuDevice, Communicator* communicator, int* device) \
  X(ncclCommUserRank, Communicator* communicator, int* rank) \
  X(ncclGroupStart) \
  X(ncclGroupEnd) \
  X(ncclAllReduce, const void* send, void* receive, size_t count, DataType type, Reduction reduction, Communicator* communicator, Stream stream) \
  X(ncclReduce, const void* send, void* receive, size_t count, DataType type, Reduction reduction, int root, Communicator* communicator, Stream stream) \
  X(ncclReduceScatter, const void* send, void* receive, size_t count, DataType type, Reduction reduction, Communicator* communicator, Stream stream) \
  X(ncclAllGather, const void* send, void* receive, size_t count, DataType type, Communicator* communicator, Stream stream) \
  X(ncclAlltoAll, const void* send, void* receive, size_t count, DataType type, Communicator* communicator, Stream stream) \
  X(ncclBroadcast, const void* send, void* receive, size_t count, DataType type, int root, Communicator* communicator, Stream stream) \
  X(ncclBcast, void* bytes, size_t count, DataType type, int root, Communicator* communicator, Stream stream) \
  X(ncclSend, const void* bytes, size_t count, DataType type, int peer, Communicator* communicator, Stream stream) \
  X(ncclRecv, void* bytes, size_t count, DataType type, int peer, Communicator* communicator, Stream stream)

// Functions that libtorch_cuda imports but no program of ours calls: refused.
#define SLUICE_FAKE_NCCL_REFUSED(X) \
  X(ncclCommDeregister) X(ncclCommInitAll) X(ncclCommInitRankScalable) \
  X(ncclCommRegister) X(ncclCommShrink) X(ncclCommSplit) \
  X(ncclCommWindowDeregister) X(ncclCommWindowRegister) \
  X(ncclDevCommCreate) X(ncclDevCommDestroy) X(ncclGroupSimulateEnd) \
  X(ncclMemAlloc) X(ncclMemFree) X(ncclRedOpCreatePreMulSum) \
  X(ncclRedOpDestroy)
// clang-format on

#define SLUICE_FAKE_NCCL_EXPORT extern "C" [[gnu::visibility("default")]]

// Not declared together with NCCL's own header, which has the same names.
#ifndef SLUICE_FAKE_NCCL_ONLY_TYPES
namespace sluice::fake_nccl {
#define SLUICE_FAKE_NCCL_DECLARE(name, ...) \
  SLUICE_FAKE_NCCL_EXPORT Result name(__VA_ARGS__);
SLUICE_FAKE_NCCL_FUNCTIONS(SLUICE_FAKE_NCCL_DECLARE)
#undef SLUICE_FAKE_NCCL_DECLARE
SLUICE_FAKE_NCCL_EXPORT const char* ncclGetErrorString(Result result);
SLUICE_FAKE_NCCL_EXPORT const char* ncclGetLastError(Communicator*);
}  // namespace sluice::fake_nccl
#endif
