// What one rank issued, as the other ranks see it, and what is wrong with two
// records that must agree.
//
// A record says besides how far its rank was in every communicator of the same
// GPU. Two ranks that share communicators must issue their operations in one
// order, for each may occupy a GPU while it waits for the other (NCCL's guide,
// "Using multiple NCCL communicators concurrently"); so these positions must be
// equal as well. They are known when an operation is issued: a wrong order is
// found whatever the timing.
//
// Lies in memory that processes share: plain bytes. Thread safety: pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tests/fake_cuda/nccl/api.h"

namespace sluice::fake_nccl {

inline constexpr int kMaxRanks = 8;
inline constexpr int kMaxCommunicators = 8;  // of a GPU

enum class Operation : int {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kAllGather,
  kAlltoAll,
  kBroadcast,
  kSend,
  kReceive,
};

struct What {
  Operation operation = Operation::kAllReduce;
  DataType type = kFloat32;
  Reduction reduction = kSum;  // of those that reduce
  int root = -1;               // -1: it has none; of send and receive, the peer
  uint64_t count = 0;
};

// How far a rank was in a communicator, before this operation.
struct Position {
  uint64_t communicator = 0;  // 0: no entry
  uint64_t collectives = 0;
  // In a send's or receive's record: the sends and receives with its peer.
  uint64_t with_peer = 0;
};

struct Record {
  What what;
  Position positions[kMaxCommunicators] = {};
};

bool HasRoot(Operation operation);
bool Reduces(Operation operation);
size_t SizeOf(DataType type);
// "AllReduce of 4 float32 (sum)".
std::string Describe(const What& what);
// "5f3a".
std::string NameOf(uint64_t communicator);

// A rank's side in a sentence.
struct Side {
  int rank = 0;
  const Record& record;
};

// Why two records of the same place in the sequence, or the send and receive of
// one message, do not match.
std::optional<std::string> Mismatch(const Side& one, const Side& other);
// Why they match, but not in the order among communicators.
std::optional<std::string> Crossing(const Side& one, const Side& other);
// `other` has issued what this rank has not, which is now at `now`: whether
// this rank is already past where `other` issued it.
std::optional<std::string> Passed(int rank, const Record& now,
                                  const Side& other);

}  // namespace sluice::fake_nccl
