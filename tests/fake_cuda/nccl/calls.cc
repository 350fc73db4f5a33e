// NCCL's functions: groups, and the translation of calls to operations.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdio>

#include "tests/fake_cuda/nccl/api.h"
#include "tests/fake_cuda/nccl/board.h"
#include "tests/fake_cuda/nccl/communicator.h"
#include "tests/fake_cuda/nccl/options.h"
#include "tests/fake_cuda/of_thread.h"

namespace sluice::fake_nccl {
namespace {

// The calls of a thread since its outermost ncclGroupStart.
struct Group {
  int depth = 0;
  Communicator* communicator = nullptr;
  Stream stream = nullptr;
  std::vector<Issue> issues;
};
Group& TheGroup() { return fake_cuda::OfThread<Group>(); }

Result RefuseDead(const char* call) {
  return Refuse(kInvalidArgument,
                fmt::format("{}: no live communicator", call));
}

// The number of operations that this process issued, by Operation.
struct Counts {
  ~Counts() {
    if (!TellsCounts()) return;
    const auto count = [this](Operation o) {
      return issued[static_cast<size_t>(o)].load();
    };
    std::fprintf(stderr,
                 "fake libnccl: reduce=%d reduce_scatter=%d all_gather=%d "
                 "broadcast=%d\n",
                 count(Operation::kReduce), count(Operation::kReduceScatter),
                 count(Operation::kAllGather), count(Operation::kBroadcast));
  }
  std::array<std::atomic<int>, 8> issued{};
};

Result Issued(const Issue& issue, Communicator* communicator, Stream stream) {
  static Counts counts;
  ++counts.issued[static_cast<size_t>(issue.what.operation)];
  if (!Communicator::IsLive(communicator)) return RefuseDead("an operation");
  Group& group = TheGroup();
  if (group.depth == 0) return communicator->Enqueue({issue}, stream);
  if (!group.issues.empty() &&
      (group.communicator != communicator || group.stream != stream)) {
    return Refuse(kInvalidUsage,
                  "a group of several communicators or streams is not "
                  "implemented here");
  }
  group.communicator = communicator;
  group.stream = stream;
  group.issues.push_back(issue);
  return kSuccess;
}

Result Join(int ranks, const UniqueId& id, int rank, Communicator** made) {
  if (TheGroup().depth > 0) {
    return Refuse(kInvalidUsage,
                  "communicators made in a group are not implemented here");
  }
  return Communicator::Join(ranks, id, rank, made);
}

}  // namespace

Result ncclGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}

Result ncclGetUniqueId(UniqueId* id) {
  return Board::Make(*id) ? kSuccess : kSystemError;
}

Result ncclCommInitRank(Communicator** made, int ranks, UniqueId id, int rank) {
  return Join(ranks, id, rank, made);
}

Result ncclCommInitRankConfig(Communicator** made, int ranks, UniqueId id,
                              int rank, Config* config) {
  if (config != nullptr && config->magic != kConfigMagic) {
    return Refuse(kInvalidArgument, "the config was not initialised");
  }
  if (config != nullptr && config->blocking == 0) {
    return Refuse(kInvalidUsage,
                  "communicators that do not block are not implemented here");
  }
  return Join(ranks, id, rank, made);
}

Result ncclCommFinalize(Communicator* communicator) {
  if (!Communicator::IsLive(communicator)) return RefuseDead("finalize");
  return communicator->Finalize();
}

Result ncclCommDestroy(Communicator* communicator) {
  if (communicator == nullptr) return kSuccess;
  if (!Communicator::IsLive(communicator)) return RefuseDead("destroy");
  communicator->Finalize();
  Communicator::Release(communicator);
  return kSuccess;
}

Result ncclCommAbort(Communicator* communicator) {
  if (communicator == nullptr) return kSuccess;
  if (!Communicator::IsLive(communicator)) return RefuseDead("abort");
  communicator->Abort();
  Communicator::Release(communicator);
  return kSuccess;
}

Result ncclCommGetAsyncError(Communicator* communicator, Result* error) {
  if (!Communicator::IsLive(communicator)) return RefuseDead("async error");
  *error = communicator->AsyncError();
  return kSuccess;
}

Result ncclCommCount(Communicator* communicator, int* count) {
  if (!Communicator::IsLive(communicator)) return RefuseDead("count");
  *count = communicator->place().ranks;
  return kSuccess;
}

Result ncclCommCuDevice(Communicator* communicator, int* device) {
  if (!Communicator::IsLive(communicator)) return RefuseDead("device");
  *device = communicator->device();
  return kSuccess;
}

Result ncclCommUserRank(Communicator* communicator, int* rank) {
  if (!Communicator::IsLive(communicator)) return RefuseDead("rank");
  *rank = communicator->place().rank;
  return kSuccess;
}

Result ncclGroupStart() {
  ++TheGroup().depth;
  return kSuccess;
}

Result ncclGroupEnd() {
  Group& group = TheGroup();
  if (group.depth == 0) {
    return Refuse(kInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  }
  if (--group.depth > 0) return kSuccess;
  const Group done = std::exchange(group, {});
  if (done.issues.empty()) return kSuccess;
  return done.communicator->Enqueue(done.issues, done.stream);
}

Result ncclAllReduce(const void* send, void* receive, size_t count,
                     DataType type, Reduction reduction,
                     Communicator* communicator, Stream stream) {
  return Issued(
      {{Operation::kAllReduce, type, reduction, -1, count}, send, receive},
      communicator, stream);
}

Result ncclReduce(const void* send, void* receive, size_t count, DataType type,
                  Reduction reduction, int root, Communicator* communicator,
                  Stream stream) {
  return Issued(
      {{Operation::kReduce, type, reduction, root, count}, send, receive},
      communicator, stream);
}

Result ncclReduceScatter(const void* send, void* receive, size_t count,
                         DataType type, Reduction reduction,
                         Communicator* communicator, Stream stream) {
  return Issued(
      {{Operation::kReduceScatter, type, reduction, -1, count}, send, receive},
      communicator, stream);
}

Result ncclAllGather(const void* send, void* receive, size_t count,
                     DataType type, Communicator* communicator, Stream stream) {
  return Issued({{Operation::kAllGather, type, kSum, -1, count}, send, receive},
                communicator, stream);
}

Result ncclAlltoAll(const void* send, void* receive, size_t count,
                    DataType type, Communicator* communicator, Stream stream) {
  return Issued({{Operation::kAlltoAll, type, kSum, -1, count}, send, receive},
                communicator, stream);
}

Result ncclBroadcast(const void* send, void* receive, size_t count,
                     DataType type, int root, Communicator* communicator,
                     Stream stream) {
  return Issued(
      {{Operation::kBroadcast, type, kSum, root, count}, send, receive},
      communicator, stream);
}

Result ncclBcast(void* bytes, size_t count, DataType type, int root,
                 Communicator* communicator, Stream stream) {
  return ncclBroadcast(bytes, bytes, count, type, root, communicator, stream);
}

Result ncclSend(const void* bytes, size_t count, DataType type, int peer,
                Communicator* communicator, Stream stream) {
  return Issued({{Operation::kSend, type, kSum, peer, count}, bytes, nullptr},
                communicator, stream);
}

Result ncclRecv(void* bytes, size_t count, DataType type, int peer,
                Communicator* communicator, Stream stream) {
  return Issued(
      {{Operation::kReceive, type, kSum, peer, count}, nullptr, bytes},
      communicator, stream);
}

const char* ncclGetErrorString(Result result) {
  static constexpr const char* kTexts[] = {
      "no error",       "unhandled cuda error", "unhandled system error",
      "internal error", "invalid argument",     "invalid usage",
      "remote error",   "in progress"};
  return result >= 0 && result <= kInProgress ? kTexts[result]
                                              : "unknown result";
}

const char* ncclGetLastError(Communicator*) { return LastError(); }

// Defined without parameters, as none is read.
#define SLUICE_FAKE_NCCL_REFUSE(name)                               \
  SLUICE_FAKE_NCCL_EXPORT Result name() {                           \
    return Refuse(kInvalidUsage, #name " is not implemented here"); \
  }
SLUICE_FAKE_NCCL_REFUSED(SLUICE_FAKE_NCCL_REFUSE)
#undef SLUICE_FAKE_NCCL_REFUSE

}  // namespace sluice::fake_nccl
