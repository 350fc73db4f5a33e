// A communicator's memory, which its ranks share: the ranks, what each has
// issued, and the bytes on their way.
//
// It is a memfd that joiners open through /proc/PID/fd of the process that made
// the unique id: nothing has a name in a file system, so nothing is left when
// any of them is killed. Like NCCL's bootstrap, its maker must live until all
// have joined.
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

// How far a rank may be ahead of another; then it waits to issue, as with a
// full launch queue.
inline constexpr uint64_t kLog = 1024;
inline constexpr size_t kChannelBytes = size_t{256} << 10;

// What one side has issued: record i is at i % kLog and is whole once
// count > i.
struct Log {
  std::atomic<uint64_t> count = 0;
  Record records[kLog];

  const Record& at(uint64_t i) const { return records[i % kLog]; }
  void Append(const Record& record) {
    records[count.load() % kLog] = record;
    ++count;
  }
};

// Bytes from one rank to another, in order.
struct Channel {
  Log sends, receives;
  std::atomic<uint64_t> put = 0, taken = 0;  // bytes so far
  std::byte bytes[kChannelBytes];
};

// absent -> joined -> left or aborted.
enum class MemberState : uint32_t {
  kAbsent,
  kJoining,
  kJoined,
  kLeft,
  kAborted
};

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
  std::atomic<int> ranks = 0;  // 0: no rank has joined
  std::atomic<int> joined = 0;
  std::atomic<uint32_t> changed = 0;  // counts; waiters sleep on it
  std::atomic<int> failure = 0;       // a Result, or -1 while it is written
  char why[1024] = {};
  Member members[kMaxRanks];
  Channel channels[kMaxRanks][kMaxRanks];  // from, to
};

// A rank among how many.
struct Place {
  int rank = 0;
  int ranks = 0;
};

// This process's view of one. Thread safety: thread-safe.
class Board {
 public:
  // A new one, known by `id`.
  static bool Make(UniqueId& id);
  // Null: `why` says why. Waits until all have joined.
  static std::shared_ptr<Board> Join(const UniqueId& id, int ranks, int rank,
                                     int device, std::string& why);
  ~Board();
  Board(const Board&) = delete;

  Shared& shared() { return *shared_; }
  int ranks() const { return ranks_; }

  // The first failure counts, and ends all operations of all ranks.
  bool Fail(Result result, const std::string& why);
  Result failure() const;
  std::string why() const;
  // Whether a rank can still take part. A rank that died without leaving is
  // found by its process; with silent deaths (options.h) only ranks that left
  // are gone.
  Fate FateOf(int rank);
  // Fails if a rank died.
  void LookForDeaths();

  uint32_t Changes() const { return shared_->changed.load(); }
  void Changed();
  // Until something changed since `seen`, or some milliseconds.
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
  UniqueFd processes_[kMaxRanks] ABSL_GUARDED_BY(mutex_);  // a pidfd each
};

}  // namespace sluice::fake_nccl
