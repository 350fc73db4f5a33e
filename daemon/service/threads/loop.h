// The daemon's event loop: epoll, one thread.
//
// Thread safety: Post, Call, CallAndWait, Stop and now from any thread; other
// methods only on the loop's thread, or before Run.
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/service/threads/task_thread.h"
#include "proto/base/clock.h"
#include "proto/base/mutex.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class Loop {
 public:
  using Handler = std::function<void(uint32_t events)>;

  static absl::StatusOr<std::unique_ptr<Loop>> Make(const Clock* clock);

  // Watches `fd`, which stays the caller's and must be removed before it is
  // closed. A handler may remove any fd, including its own.
  void Add(int fd, uint32_t events, Handler handler);
  void Change(int fd, uint32_t events);
  void Remove(int fd);

  // Queues `task` for the loop's thread. Returns false if the loop has ended.
  bool Post(std::function<void()> task);
  // Runs `task` on the loop's thread and waits for its end. Returns false after
  // `timeout`, or if the loop has ended; the task may run later, or never.
  bool Call(std::function<void()> task, absl::Duration timeout);
  // As Call, but waits until the last copy of the token is destroyed: work that
  // follows `task` may hold a copy. Also returns true if the loop has ended and
  // dropped `task`.
  using Token = std::shared_ptr<void>;
  bool CallAndWait(std::function<void(Token)> task, absl::Duration timeout);

  void SetTimer(std::function<absl::Time()> deadline,
                std::function<void()> expired) {
    deadline_ = std::move(deadline);
    expired_ = std::move(expired);
  }

  // `some` is called after the events of each turn; it does a part of the
  // background work and returns whether there is more.
  void SetWork(std::function<bool()> some) { work_ = std::move(some); }

  // Tells the loop that a Post follows in a fraction of a ms. The loop polls
  // for kAwake before it sleeps, because waking up takes about as long. A loop
  // with real-time priority does not poll: it wakes up at once, and the posting
  // thread may need its core.
  void ExpectSoon() { awake_until_ = clock_->Now() + kAwake; }

  // Lets Run's thread have real-time priority, as Urgency decides.
  void BeUrgent() { urgency_.emplace(); }

  absl::Time now() const { return clock_->Now(); }

  void Run();  // until Stop
  // Handles pending events for at most `longest`. Call before Run.
  void RunWhatIsThere(absl::Duration longest);
  void Stop() {
    Post([this] { stopping_ = true; });
  }

 private:
  explicit Loop(const Clock* clock) : clock_(clock) {}
  // Returns whether there were events, or there is more background work.
  bool Turn(int timeout_ms);
  void RunPosted();
  int TimeoutMs() const;
  void TakePlace(absl::Time now);  // sets the thread's priority

  static constexpr absl::Duration kAwake = absl::Microseconds(500);

  const UniqueFd epoll_{epoll_create1(EPOLL_CLOEXEC)};
  const UniqueFd wake_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  const Clock* clock_;
  // Handlers have numbers that are never used again: an event that was fetched
  // already finds no handler if its fd was closed and the fd's number reused.
  std::unordered_map<uint64_t, std::shared_ptr<Handler>> handlers_;
  std::unordered_map<int, uint64_t> numbers_;
  uint64_t next_number_ = 1;
  std::function<absl::Time()> deadline_;
  std::function<void()> expired_;
  std::function<bool()> work_;
  absl::Time awake_until_ = absl::InfinitePast();
  std::optional<Urgency> urgency_;
  bool first_ = false;     // loop thread: has real-time priority
  bool more_ = false;      // loop thread: work_ has more to do
  bool stopping_ = false;  // loop thread

  Mutex mutex_;
  std::vector<std::function<void()>> posted_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::daemon
