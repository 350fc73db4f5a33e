#include "tests/fake_cuda/nccl/task.h"

#include <fmt/format.h>

#include <cstring>
#include <list>

#include "tests/fake_cuda/nccl/exchange.h"
#include "tests/fake_cuda/nccl/reduce.h"

namespace sluice::fake_nccl {
namespace {

using fake_cuda::Access;

size_t BytesOf(const What& what) { return what.count * SizeOf(what.type); }

// A running operation: the views of its buffers, and the received parts of a
// sum.
struct Running {
  const What& what;
  Place place;
  std::byte* read = nullptr;
  std::byte* written = nullptr;
  std::vector<std::vector<std::byte>> parts = {};  // by rank

  size_t bytes() const { return BytesOf(what); }
  bool IsRoot() const { return place.rank == what.root; }
};

using Transfers = std::vector<Transfer>;

template <typename Visit>
void EachPeer(const Running& running, Visit visit) {
  for (int peer = 0; peer < running.place.ranks; ++peer) {
    if (peer != running.place.rank) visit(peer);
  }
}

// Returns block `i` of a buffer that has one block per rank.
std::byte* Block(std::byte* buffer, const Running& running, int i) {
  return buffer + static_cast<size_t>(i) * running.bytes();
}

// Adds a send to every peer: of the peer's block if `blocks`, else of the whole
// buffer.
void SendToAll(const Running& running, bool blocks, Transfers& transfers) {
  EachPeer(running, [&](int peer) {
    std::byte* const from =
        blocks ? Block(running.read, running, peer) : running.read;
    transfers.push_back({peer, true, from, running.bytes()});
  });
}

void ReceiveBlocks(const Running& running, Transfers& transfers) {
  EachPeer(running, [&](int peer) {
    transfers.push_back(
        {peer, false, Block(running.written, running, peer), running.bytes()});
  });
}

void ReceiveParts(Running& running, Transfers& transfers) {
  running.parts.resize(static_cast<size_t>(running.place.ranks));
  EachPeer(running, [&](int peer) {
    auto& part = running.parts[static_cast<size_t>(peer)];
    part.resize(running.bytes());
    transfers.push_back({peer, false, part.data(), part.size()});
  });
}

void Plan(Running& running, Transfers& transfers) {
  const int root = running.what.root;
  switch (running.what.operation) {
    case Operation::kAllReduce:
      SendToAll(running, /*blocks=*/false, transfers);
      return ReceiveParts(running, transfers);
    case Operation::kReduce:
      if (running.IsRoot()) return ReceiveParts(running, transfers);
      transfers.push_back({root, true, running.read, running.bytes()});
      return;
    case Operation::kReduceScatter:
      SendToAll(running, /*blocks=*/true, transfers);
      return ReceiveParts(running, transfers);
    case Operation::kAllGather:
      SendToAll(running, /*blocks=*/false, transfers);
      return ReceiveBlocks(running, transfers);
    case Operation::kAlltoAll:
      SendToAll(running, /*blocks=*/true, transfers);
      return ReceiveBlocks(running, transfers);
    case Operation::kBroadcast:
      if (running.IsRoot()) {
        return SendToAll(running, /*blocks=*/false, transfers);
      }
      transfers.push_back({root, false, running.written, running.bytes()});
      return;
    case Operation::kSend:
      transfers.push_back({root, true, running.read, running.bytes()});
      return;
    case Operation::kReceive:
      transfers.push_back({root, false, running.written, running.bytes()});
      return;
  }
}

// Returns this rank's own part of the sum.
std::byte* OwnPart(const Running& running) {
  return running.what.operation == Operation::kReduceScatter
             ? Block(running.read, running, running.place.rank)
             : running.read;
}

void SumParts(const Running& running) {
  std::vector<const std::byte*> parts;
  for (const auto& part : running.parts) parts.push_back(part.data());
  parts[static_cast<size_t>(running.place.rank)] = OwnPart(running);
  Reduce(parts, running.what.count, running.what.type, running.what.reduction,
         running.written);
}

void Finish(const Running& running) {
  const int rank = running.place.rank;
  const auto copy = [&](std::byte* to, const std::byte* from) {
    if (to != from) std::memmove(to, from, running.bytes());
  };
  if (!running.parts.empty()) SumParts(running);
  if (running.bytes() == 0) return;
  switch (running.what.operation) {
    case Operation::kAllGather:
      return copy(Block(running.written, running, rank), running.read);
    case Operation::kAlltoAll:
      return copy(Block(running.written, running, rank),
                  Block(running.read, running, rank));
    case Operation::kBroadcast:
      if (running.IsRoot()) copy(running.written, running.read);
      return;
    default:
      return;
  }
}

uintptr_t At(const Access& access) {
  return reinterpret_cast<uintptr_t>(access.address);
}

bool Overlap(const Access& a, const Access& b) {
  return a.size > 0 && b.size > 0 && At(a) < At(b) + b.size &&
         At(b) < At(a) + a.size;
}

// Returns whether the operation is in place; nccl.h states for each when
// "in-place operation will happen".
bool InPlace(const Issue& issue, const Buffers& buffers, Place place) {
  const size_t own = static_cast<size_t>(place.rank) * BytesOf(issue.what);
  const uintptr_t read = At(buffers.read), written = At(buffers.written);
  switch (issue.what.operation) {
    case Operation::kAllGather:
      return read == written + own;
    case Operation::kReduceScatter:
      return written == read + own;
    case Operation::kAllReduce:
    case Operation::kReduce:
    case Operation::kBroadcast:
      return read == written;
    default:
      return false;
  }
}

}  // namespace

Buffers BuffersOf(const Issue& issue, Place place) {
  const size_t one = BytesOf(issue.what);
  const size_t all = one * static_cast<size_t>(place.ranks);
  const bool root = issue.what.root == place.rank;
  size_t read = one, written = one;
  switch (issue.what.operation) {
    case Operation::kAllReduce:
      break;
    case Operation::kReduce:
      written = root ? one : 0;
      break;
    case Operation::kReduceScatter:
      read = all;
      break;
    case Operation::kAllGather:
      written = all;
      break;
    case Operation::kAlltoAll:
      read = written = all;
      break;
    case Operation::kBroadcast:
      read = root ? one : 0;
      break;
    case Operation::kSend:
      written = 0;
      break;
    case Operation::kReceive:
      read = 0;
      break;
  }
  return {{issue.send, read, false}, {issue.receive, written, true}};
}

std::string CheckArguments(const Issue& issue, Place place) {
  const What& what = issue.what;
  if (what.type < 0 || what.type >= kDataTypes) return "no such type";
  if (what.reduction < 0 || what.reduction >= kReductions) {
    return "no such reduction (user-defined ones are not implemented here)";
  }
  const bool peers = HasRoot(what.operation) ||
                     what.operation == Operation::kSend ||
                     what.operation == Operation::kReceive;
  if (peers && (what.root < 0 || what.root >= place.ranks)) {
    return fmt::format("{}: there are {} ranks", Describe(what), place.ranks);
  }
  if (Reduces(what.operation) && !CanReduce(what.type)) {
    return Describe(what) +
           ": reductions of this type are not implemented here";
  }
  const Buffers buffers = BuffersOf(issue, place);
  for (const Access& access : {buffers.read, buffers.written}) {
    if (access.size > 0 && access.address == nullptr) {
      return Describe(what) + ": a buffer is null";
    }
  }
  return "";
}

std::string CheckApart(const std::vector<Issue>& group, Place place) {
  for (size_t i = 0; i < group.size(); ++i) {
    const Buffers one = BuffersOf(group[i], place);
    for (size_t j = 0; j < group.size(); ++j) {
      const Buffers other = BuffersOf(group[j], place);
      const bool in_place = i == j && InPlace(group[i], one, place);
      if ((!in_place && Overlap(one.written, other.read)) ||
          (i != j && Overlap(one.written, other.written))) {
        return fmt::format("{} writes what {} uses", Describe(group[i].what),
                           Describe(group[j].what));
      }
    }
  }
  return "";
}

bool Perform(Board& board, const std::vector<Issue>& group, Place place,
             const fake_cuda::Views& views,
             const std::function<bool()>& stopped) {
  std::list<Running> all;
  Transfers transfers;
  for (size_t i = 0; i < group.size(); ++i) {
    all.push_back({group[i].what, place, views[2 * i], views[2 * i + 1]});
    Plan(all.back(), transfers);
  }
  if (!Exchange(board, place.rank, std::move(transfers), stopped)) return false;
  for (const Running& running : all) Finish(running);
  return true;
}

}  // namespace sluice::fake_nccl
