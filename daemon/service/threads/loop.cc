#include "daemon/service/threads/loop.h"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "proto/base/status.h"

namespace sluice::daemon {

absl::StatusOr<std::unique_ptr<Loop>> Loop::Make(const Clock* clock) {
  auto loop = std::unique_ptr<Loop>(new Loop(clock));
  if (!loop->epoll_ || !loop->wake_) {
    return ErrnoStatus(errno, "make an event loop");
  }
  Loop* raw = loop.get();
  loop->Add(raw->wake_.get(), EPOLLIN, [raw](uint32_t) { raw->RunPosted(); });
  return loop;
}

void Loop::Add(int fd, uint32_t events, Handler handler) {
  const uint64_t number = next_number_++;
  epoll_event event = {.events = events, .data = {.u64 = number}};
  SLUICE_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
  handlers_[number] = std::make_shared<Handler>(std::move(handler));
  numbers_[fd] = number;
}

void Loop::Change(int fd, uint32_t events) {
  epoll_event event = {.events = events, .data = {.u64 = numbers_.at(fd)}};
  SLUICE_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0);
}

void Loop::Remove(int fd) {
  const auto number = numbers_.find(fd);
  if (number == numbers_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  handlers_.erase(number->second);
  numbers_.erase(number);
}

bool Loop::Post(std::function<void()> task) {
  {
    const MutexLock lock(mutex_);
    if (ended_) return false;
    posted_.push_back(std::move(task));
    // Another task is posted, so the loop is woken already.
    if (posted_.size() > 1) return true;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = write(wake_.get(), &one, sizeof(one));
  return true;
}

bool Loop::Call(std::function<void()> task, absl::Duration timeout) {
  const auto ran = std::make_shared<std::atomic<bool>>(false);
  return CallAndWait(
             [ran, task = std::move(task)](const Token&) {
               task();
               *ran = true;
             },
             timeout) &&
         *ran;
}

bool Loop::CallAndWait(std::function<void(Token)> task,
                       absl::Duration timeout) {
  struct Done {
    Mutex mutex;
    CondVar ready;
    bool is ABSL_GUARDED_BY(mutex) = false;
  };
  const auto done = std::make_shared<Done>();
  Token token(done.get(), [done](void*) {
    const MutexLock lock(done->mutex);
    done->is = true;
    done->ready.NotifyAll();
  });
  Post([task = std::move(task), token = std::move(token)]() mutable {
    task(std::move(token));
  });
  const auto deadline = CondVar::Deadline(timeout);
  const MutexLock lock(done->mutex);
  while (!done->is && done->ready.WaitUntil(done->mutex, deadline)) {
  }
  return done->is;
}

void Loop::RunPosted() {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof(count));
  std::vector<std::function<void()>> tasks;
  {
    const MutexLock lock(mutex_);
    tasks.swap(posted_);
  }
  for (auto& task : tasks) task();
}

int Loop::TimeoutMs() const {
  if (!deadline_) return -1;
  const absl::Duration left = deadline_() - clock_->Now();
  if (left >= absl::Hours(1)) return -1;
  return static_cast<int>(
      std::max<int64_t>(0, absl::ToInt64Milliseconds(left) + 1));
}

bool Loop::Turn(int timeout_ms) {
  std::array<epoll_event, 64> events;
  const int n =
      epoll_wait(epoll_.get(), events.data(), events.size(), timeout_ms);
  for (int i = 0; i < n; ++i) {
    const uint64_t id = events[i].data.u64;  // a copy: the struct is packed
    const auto handler = handlers_.find(id);
    if (handler == handlers_.end()) continue;
    // A copy, because the handler may remove itself.
    const auto keep = handler->second;
    (*keep)(events[i].events);
  }
  more_ = work_ && work_();
  if (deadline_ && deadline_() <= clock_->Now()) expired_();
  return n > 0 || more_;
}

void Loop::RunWhatIsThere(absl::Duration longest) {
  const absl::Time end = clock_->Now() + longest;
  while (!stopping_ && Turn(0) && clock_->Now() < end) {
  }
}

void Loop::TakePlace(absl::Time now) {
  if (!urgency_ || now < urgency_->next()) return;
  const bool urgent = urgency_->IsUrgent(now, CpuTimeOfThisThread());
  if (urgent == first_) return;
  first_ = GoBeforeOthers(urgent) && urgent;
  // A kernel that refuses the priority now refuses it later too.
  if (urgent && !first_) urgency_.reset();
}

void Loop::Run() {
  while (!stopping_) {
    const absl::Time now = clock_->Now();
    TakePlace(now);
    const bool awake = !first_ && now < awake_until_;
    const bool any = Turn(awake || more_ ? 0 : TimeoutMs());
    if (!any && awake) sched_yield();
  }
  // Declared before the lock, so that tasks are destroyed after it is released.
  std::vector<std::function<void()>> dropped;
  const MutexLock lock(mutex_);
  ended_ = true;
  dropped.swap(posted_);
}

}  // namespace sluice::daemon
