// The daemon's event loop: epoll, one thread.
//
// Thread safety: Post, Call and Stop from any thread; the rest only on the
// loop's thread, or before Run.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/service/threads/urgency.h"
#include "proto/base/clock.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class Loop {
 public:
  // Gets the pending epoll events (EPOLLIN, EPOLLHUP, …).
  using Handler = std::function<void(uint32_t events)>;

  static absl::StatusOr<std::unique_ptr<Loop>> Make(const Clock* clock);

  // Watches `fd`, which stays the caller's and must be removed before it is
  // closed. A handler may remove any fd, its own included.
  void Add(int fd, uint32_t events, Handler handler);
  void Change(int fd, uint32_t events);
  void Remove(int fd);

  // Runs `task` on the loop's thread, soon. False: the loop has ended.
  bool Post(std::function<void()> task);
  // Runs `task` on the loop's thread and waits. False after `timeout` or if the
  // loop has ended (then it may still run, or never).
  bool Call(std::function<void()> task, absl::Duration timeout);
  // The same, and waits until the last copy of the token is gone, which work
  // after `task` may hold. True also if the loop ended and dropped it.
  using Token = std::shared_ptr<void>;
  bool CallAndWait(std::function<void(Token)> task, absl::Duration timeout);

  // `deadline` returns when to call `expired` next.
  void SetTimer(std::function<absl::Time()> deadline,
                std::function<void()> expired);

  // Background work: `some` does a part of it after the events of each turn,
  // and returns whether there is more.
  void SetWork(std::function<bool()> some) { work_ = std::move(some); }

  // Something will be posted within a fraction of a millisecond: the loop spins
  // for a moment before it sleeps, for waking takes as long (not with real
  // time: it wakes at once, and the posting thread may need its core).
  void ExpectSoon() { awake_until_ = clock_->Now() + kAwake; }

  // From here on the thread of Run goes before the machine's other work, as
  // Urgency says and where the kernel allows it.
  void BeUrgent() { urgency_.emplace(); }

  absl::Time now() const { return clock_->Now(); }

  void Run();  // until Stop
  // Before Run: handles pending events, for so long at most.
  void RunWhatIsThere(absl::Duration longest);
  void Stop();

 private:
  Loop(UniqueFd epoll, UniqueFd wake, const Clock* clock);
  // Waits for events, so long at most, and handles them. Returns whether there
  // were any, or there is more.
  bool Turn(int timeout_ms);
  void RunPosted();
  int TimeoutMs() const;
  void TakePlace(absl::Time now);  // among the threads of the machine

  static constexpr absl::Duration kAwake = absl::Microseconds(500);

  UniqueFd epoll_;
  UniqueFd wake_;
  const Clock* clock_;
  // Handlers by a number that is never reused, so that an event already
  // fetched for an fd that was closed and opened again finds no handler.
  std::unordered_map<uint64_t, std::shared_ptr<Handler>> handlers_;
  std::unordered_map<int, uint64_t> numbers_;
  uint64_t next_number_ = 1;
  std::function<absl::Time()> deadline_;
  std::function<void()> expired_;
  std::function<bool()> work_;
  absl::Time awake_until_ = absl::InfinitePast();
  std::optional<Urgency> urgency_;
  bool first_ = false;     // loop thread: it has real time
  bool more_ = false;      // loop thread: of work_
  bool stopping_ = false;  // loop thread

  Mutex mutex_;
  std::vector<std::function<void()>> posted_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::daemon
