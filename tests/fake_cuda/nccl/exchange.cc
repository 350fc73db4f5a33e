#include "tests/fake_cuda/nccl/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace sluice::fake_nccl {
namespace {

struct Progress {
  Transfer transfer;
  Channel& channel;
  size_t done = 0;
  uint64_t whole = 0;  // for a send: channel.put after its last byte
};

// Returns how many of `wanted` bytes fit between position `at` and the ring's
// end.
size_t Piece(uint64_t at, size_t wanted) {
  return std::min(wanted, kChannelBytes - at % kChannelBytes);
}

bool Put(Progress& progress) {
  Channel& channel = progress.channel;
  const Transfer& transfer = progress.transfer;
  const uint64_t put = channel.put;
  const size_t room = kChannelBytes - (put - channel.taken);
  const size_t size = Piece(put, std::min(room, transfer.size - progress.done));
  if (size == 0) return false;
  std::memcpy(channel.bytes + put % kChannelBytes,
              transfer.bytes + progress.done, size);
  progress.done += size;
  progress.whole = put + size;
  channel.put = put + size;
  return true;
}

bool Take(Progress& progress) {
  Channel& channel = progress.channel;
  const Transfer& transfer = progress.transfer;
  const uint64_t taken = channel.taken;
  const size_t size = Piece(
      taken,
      std::min<size_t>(channel.put - taken, transfer.size - progress.done));
  if (size == 0) return false;
  std::memcpy(transfer.bytes + progress.done,
              channel.bytes + taken % kChannelBytes, size);
  progress.done += size;
  channel.taken = taken + size;
  return true;
}

bool IsDone(const Progress& progress) {
  if (progress.done < progress.transfer.size) return false;
  return !progress.transfer.sends || progress.channel.taken >= progress.whole;
}

// Returns whether transfer `i` is the first unfinished one of its channel:
// transfers of one channel run one after the other.
bool IsFirst(const std::vector<Progress>& all, size_t i) {
  return std::none_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i),
                      [&](const Progress& earlier) {
                        return &earlier.channel == &all[i].channel &&
                               earlier.transfer.sends ==
                                   all[i].transfer.sends &&
                               earlier.done < earlier.transfer.size;
                      });
}

bool Step(std::vector<Progress>& all) {
  bool moved = false;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].done == all[i].transfer.size || !IsFirst(all, i)) continue;
    moved |= all[i].transfer.sends ? Put(all[i]) : Take(all[i]);
  }
  return moved;
}

using Ranks = std::vector<int>;

Ranks Gone(Board& board) {
  Ranks gone;
  for (int rank = 0; rank < board.ranks(); ++rank) {
    if (board.FateOf(rank) != Fate::kHere) gone.push_back(rank);
  }
  return gone;
}

// Fails the board if an unfinished transfer needs a rank that had gone before
// its channels were last checked.
void FailWithout(Board& board, int rank, const std::vector<Progress>& all,
                 const Ranks& gone) {
  for (const Progress& progress : all) {
    const int peer = progress.transfer.peer;
    if (IsDone(progress) || std::count(gone.begin(), gone.end(), peer) == 0) {
      continue;
    }
    const Fate fate = board.FateOf(peer);
    board.Fail(kRemoteError,
               fmt::format("rank {} waits for rank {}, {}", rank, peer,
                           fate == Fate::kDied   ? "whose process has ended"
                           : fate == Fate::kLeft ? "which has left"
                                                 : "which has aborted"));
  }
}

}  // namespace

bool Exchange(Board& board, int rank, std::vector<Transfer> transfers,
              const std::function<bool()>& stopped) {
  Shared& shared = board.shared();
  std::vector<Progress> all;
  for (const Transfer& transfer : transfers) {
    Channel& channel = transfer.sends ? shared.channels[rank][transfer.peer]
                                      : shared.channels[transfer.peer][rank];
    all.push_back({transfer, channel});
  }
  Ranks gone;
  for (;;) {
    const uint32_t seen = board.Changes();
    if (board.failure() != kSuccess || stopped()) return false;
    if (Step(all)) {
      board.Changed();
      continue;
    }
    if (std::all_of(all.begin(), all.end(), IsDone)) return true;
    FailWithout(board, rank, all, gone);
    board.WaitForChange(seen);
    gone = Gone(board);
  }
}

}  // namespace sluice::fake_nccl
