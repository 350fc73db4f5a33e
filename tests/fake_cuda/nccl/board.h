// A communicator's memory, which its ranks share: the ranks, the operations
// that each has issued, and the bytes in flight.
//
// The memory is a memfd. Joining ranks open it through /proc/PID/fd of the
// process that made the unique id. That process must live until all ranks have
// joined, as with NCCL's bootstrap. A memfd has no name in a file system, so
// killed ranks leave nothing.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"
#include "tests/fake_cuda/nccl/api.h"
#include "tests/fake_cuda/nccl/record.h"

namespace sluice::fake_nccl {

// A rank that is this many operations ahead of another waits before it issues
// the next one, as with a full launch queue.
inline constexpr uint64_t kLog = 1024;
inline constexpr size_t kChannelBytes = size_t{256} << 10;

// A ring of the operations that a rank has issued: all its collectives, or its
// sends to or receives from one other rank. Record i is at i % kLog, and is
// complete once count > i.
struct Log {
  std::atomic<uint64_t> count = 0;
  Record records[kLog];

  const Record& at(uint64_t i) const { return records[i % kLog]; }
  void Append(const Record& record) {
    records[count.load() % kLog] = record;
    ++count;
  }
};

// The messages from one rank to another.
struct Channel {
  Log sends, receives;
  std::atomic<uint64_t> put = 0, taken = 0;  // bytes in total
  std::byte bytes[kChannelBytes];
};

// A rank's states, in the order in which it passes through them. kLeft and
// kAborted are alternatives: a rank takes one of them, and keeps it.
enum class MemberState : uint32_t {
  kAbsent,
  kJoining,
  kJoined,
  kLeft,
  kAborted
};

// What has become of a rank, as other ranks see it.
enum class Fate { kHere, kLeft, kAborted, kDied };

struct Member {
  std::atomic<MemberState> state = MemberState::kAbsent;
  pid_t process = 0;
  int device = 0;
  Log collectives;
};

struct Shared {
  uint64_t magic = 0;
  uint64_t id = 0;
  std::atomic<int> ranks = 0;  // 0 until the first rank joins
  std::atomic<int> joined = 0;
  std::atomic<uint32_t> changed = 0;  // a counter; waiters sleep on it
  std::atomic<int> failure = 0;       // a Result; -1 while `why` is written
  char why[1024] = {};
  Member members[kMaxRanks];
  Channel channels[kMaxRanks][kMaxRanks];  // [from][to]
};

struct Place {
  int rank = 0;
  int ranks = 0;
};

// This process's view of a communicator's memory.
//
// Thread safety: thread-safe.
class Board {
 public:
  // Makes a new board, which `id` names.
  static bool Make(UniqueId& id);
  // Opens the board and waits until all ranks have joined. Returns null on
  // failure, with the error in `failure` and `why`: kInvalidUsage if the ranks
  // break a rule, otherwise kRemoteError.
  static std::shared_ptr<Board> Join(const UniqueId& id, int ranks, int rank,
                                     int device, Result& failure,
                                     std::string& why);
  ~Board();
  Board(const Board&) = delete;

  Shared& shared() { return *shared_; }
  int ranks() const { return ranks_; }

  // Ends all operations of all ranks with this failure. Returns false, and
  // changes nothing, if the board has failed already.
  bool Fail(Result result, const std::string& why);
  Result failure() const;
  std::string why() const;
  // Returns kHere while a rank can still take part, and kDied if its process,
  // which a pidfd watches, has ended without leaving. With silent deaths
  // (options.h) returns kHere also for a rank that died or aborted.
  Fate FateOf(int rank);
  // Fails the board if a rank died.
  void LookForDeaths();

  uint32_t Changes() const { return shared_->changed.load(); }
  void Changed();
  // Waits until Changes() is no longer `seen`, or for 20 ms.
  void WaitForChange(uint32_t seen);

 private:
  Board() = default;
  std::string Enter(int rank, int device);
  void AwaitOthers();
  bool SameGpuTwice() const;
  bool HasDied(int rank);

  Shared* shared_ = nullptr;
  int ranks_ = 0;
  int rank_ = 0;
  Mutex mutex_;
  UniqueFd processes_[kMaxRanks] ABSL_GUARDED_BY(mutex_);  // pidfds of ranks
};

}  // namespace sluice::fake_nccl
