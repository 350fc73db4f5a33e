// The record of an operation that a rank issued, as the other ranks see it, and
// the comparison of two records that must agree.
//
// A record also has the rank's position in every communicator of the same GPU.
// Two ranks that share communicators must issue operations in the same order,
// because each operation may occupy a GPU while it waits for the other rank
// (NCCL's guide, "Using multiple NCCL communicators concurrently"). So these
// positions must be equal as well. They are known when an operation is issued,
// so a wrong order is found whatever the timing.
//
// Records lie in memory that processes share, so they hold plain bytes only.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tests/fake_cuda/nccl/api.h"

namespace sluice::fake_nccl {

inline constexpr int kMaxRanks = 8;
inline constexpr int kMaxCommunicators = 8;  // per GPU

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
  Reduction reduction = kSum;  // used only if Reduces(operation)
  int root = -1;               // the root, or the peer of a send or receive
  uint64_t count = 0;
};

// A rank's position in a communicator before a record's operation.
struct Position {
  uint64_t communicator = 0;  // its id; 0 in an unused entry
  uint64_t collectives = 0;
  // The number of sends to and receives from the operation's peer, if the
  // operation is a send or a receive.
  uint64_t with_peer = 0;
};

struct Record {
  What what;
  Position positions[kMaxCommunicators] = {};
};

bool HasRoot(Operation operation);
bool Reduces(Operation operation);
size_t SizeOf(DataType type);
// Returns text such as "AllReduce of 4 float32 (sum)".
std::string Describe(const What& what);
// Returns a communicator's name in messages, such as "5f3a".
std::string NameOf(uint64_t communicator);

// A rank and its record, for a message.
struct Side {
  int rank = 0;
  const Record& record;
};

// Returns how two records at the same place in the sequence, or the send and
// receive of one message, differ.
std::optional<std::string> Mismatch(const Side& one, const Side& other);
// For two records without a Mismatch. Returns how their positions differ: the
// ranks use their communicators in different orders.
std::optional<std::string> Crossing(const Side& one, const Side& other);
// `other` has issued an operation that `rank`, which is at `now`, has not.
// Returns a message if `rank` is already past the position of that operation.
std::optional<std::string> Passed(int rank, const Record& now,
                                  const Side& other);

}  // namespace sluice::fake_nccl
