#include "tests/fake_cuda/nccl/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace sluice::fake_nccl {
namespace {

struct TypeText {
  const char* name;
  size_t size;
};
constexpr TypeText kTypes[] = {
    {"int8", 1},    {"uint8", 1},    {"int32", 4},      {"uint32", 4},
    {"int64", 8},   {"uint64", 8},   {"float16", 2},    {"float32", 4},
    {"float64", 8}, {"bfloat16", 2}, {"float8e4m3", 1}, {"float8e5m2", 1}};
constexpr const char* kOperations[] = {"AllReduce", "Reduce",   "ReduceScatter",
                                       "AllGather", "AlltoAll", "Broadcast",
                                       "Send",      "Recv"};
constexpr const char* kReductionNames[] = {"sum", "product", "max", "min",
                                           "average"};
static_assert(std::size(kTypes) == kDataTypes);
static_assert(std::size(kReductionNames) == kReductions);

bool IsMessage(Operation operation) {
  return operation == Operation::kSend || operation == Operation::kReceive;
}

const Position* Find(const Record& record, uint64_t communicator) {
  const auto* const it = std::find_if(
      std::begin(record.positions), std::end(record.positions),
      [&](const Position& at) { return at.communicator == communicator; });
  return it == std::end(record.positions) ? nullptr : it;
}

std::string Ahead(int rank, const What& what, uint64_t count,
                  uint64_t communicator) {
  return fmt::format("rank {} issues {} after {} operations of communicator {}",
                     rank, Describe(what), count, NameOf(communicator));
}

}  // namespace

bool HasRoot(Operation operation) {
  return operation == Operation::kReduce || operation == Operation::kBroadcast;
}

bool Reduces(Operation operation) {
  return operation == Operation::kAllReduce ||
         operation == Operation::kReduce ||
         operation == Operation::kReduceScatter;
}

size_t SizeOf(DataType type) { return kTypes[type].size; }

std::string Describe(const What& what) {
  std::string text =
      fmt::format("{} of {} {}", kOperations[static_cast<int>(what.operation)],
                  what.count, kTypes[what.type].name);
  if (Reduces(what.operation)) {
    text += fmt::format(" ({})", kReductionNames[what.reduction]);
  }
  if (HasRoot(what.operation)) text += fmt::format(" at root {}", what.root);
  if (what.operation == Operation::kSend) {
    text += fmt::format(" to rank {}", what.root);
  }
  if (what.operation == Operation::kReceive) {
    text += fmt::format(" from rank {}", what.root);
  }
  return text;
}

std::string NameOf(uint64_t communicator) {
  return fmt::format("{:04x}", communicator & 0xffff);
}

std::optional<std::string> Mismatch(const Side& one, const Side& other) {
  if (other.rank < one.rank) return Mismatch(other, one);
  const What& a = one.record.what;
  const What& b = other.record.what;
  const bool message = IsMessage(a.operation);
  const bool same =
      a.type == b.type && a.count == b.count &&
      (message || (a.operation == b.operation && a.root == b.root &&
                   (!Reduces(a.operation) || a.reduction == b.reduction)));
  if (same) return std::nullopt;
  return fmt::format("rank {} issues {}, rank {} {}", one.rank, Describe(a),
                     other.rank, Describe(b));
}

std::optional<std::string> Crossing(const Side& one, const Side& other) {
  if (other.rank < one.rank) return Crossing(other, one);
  const bool message = IsMessage(one.record.what.operation);
  for (const Position& at : one.record.positions) {
    if (at.communicator == 0) continue;
    const Position* const there = Find(other.record, at.communicator);
    if (there == nullptr) continue;
    const bool same = at.collectives == there->collectives &&
                      (!message || at.with_peer == there->with_peer);
    if (same) continue;
    return fmt::format(
        "{}, {}",
        Ahead(one.rank, one.record.what, at.collectives + at.with_peer,
              at.communicator),
        Ahead(other.rank, other.record.what,
              there->collectives + there->with_peer, at.communicator));
  }
  return std::nullopt;
}

std::optional<std::string> Passed(int rank, const Record& now,
                                  const Side& other) {
  const bool message = IsMessage(other.record.what.operation);
  for (const Position& at : other.record.positions) {
    if (at.communicator == 0) continue;
    const Position* const here = Find(now, at.communicator);
    if (here == nullptr) continue;
    const bool passed = here->collectives > at.collectives ||
                        (message && here->with_peer > at.with_peer);
    if (!passed) continue;
    return fmt::format("{}, but rank {} issued {} operations of it before that",
                       Ahead(other.rank, other.record.what,
                             at.collectives + at.with_peer, at.communicator),
                       rank, here->collectives + here->with_peer);
  }
  return std::nullopt;
}

}  // namespace sluice::fake_nccl
