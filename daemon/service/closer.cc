#include "daemon/service/closer.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <deque>
#include <set>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "daemon/quota/fair_queue.h"
#include "proto/base/clock.h"
#include "proto/base/mutex.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

constexpr int kMaxDrained = 1024;
constexpr timespec kKick = {.tv_sec = 0, .tv_nsec = 1'000'000};
constexpr absl::Duration kCloserPatience = absl::Milliseconds(100);

int KickSignal() { return SIGRTMIN + 1; }

// While it lives, this thread gets a signal each millisecond: a system call
// that waits comes back.
class Kicked {
 public:
  explicit Kicked(timer_t timer) : timer_(timer) {
    const itimerspec soon = {.it_interval = kKick, .it_value = kKick};
    timer_settime(timer_, 0, &soon, nullptr);
  }
  ~Kicked() {
    const itimerspec never = {};
    timer_settime(timer_, 0, &never, nullptr);
  }
  Kicked(const Kicked&) = delete;

 private:
  const timer_t timer_;
};

// A timer that sends its signal to the calling thread.
timer_t TimerOfThisThread() {
  sigevent event = {};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = KickSignal();
  event._sigev_un._tid = gettid();
  timer_t timer = {};
  SLUICE_CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
  return timer;
}

void ReadAway(const UniqueFd& socket) {
  // Without room for descriptors: the kernel drops them here.
  char byte;
  for (int i = 0; i < kMaxDrained; ++i) {
    if (recv(socket.get(), &byte, 1, MSG_DONTWAIT) <= 0) return;
  }
}

}  // namespace

struct Closer::Shared {
  mutable Mutex mutex;
  CondVar changed;
  FairQueue<Principal, UniqueFd> received ABSL_GUARDED_BY(mutex);
  // Users with a descriptor that a thread is closing.
  std::set<Principal> closing ABSL_GUARDED_BY(mutex);
  std::deque<UniqueFd> sockets ABSL_GUARDED_BY(mutex);
  bool socket_closing ABSL_GUARDED_BY(mutex) = false;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  int running ABSL_GUARDED_BY(mutex) = 0;

  void CloseSockets();
  void CloseOthers();
};

void Closer::Shared::CloseOthers() {
  const timer_t timer = TimerOfThisThread();
  const MonotonicClock clock;
  MutexLock lock(mutex);
  while (!stopping) {
    auto next = received.Pop(
        [this](const Principal& who)
            ABSL_NO_THREAD_SAFETY_ANALYSIS { return !closing.contains(who); });
    if (!next) {
      changed.Wait(mutex);
      continue;
    }
    closing.insert(next->first);
    const absl::Time start = clock.Now();
    lock.Unlock();
    {
      const Kicked kicked(timer);
      next->second.Reset();
    }
    lock.Lock();
    closing.erase(next->first);
    received.Spent(next->first, clock.Now() - start);
  }
  timer_delete(timer);
  --running;
  changed.NotifyAll();
}

void Closer::Shared::CloseSockets() {
  const timer_t timer = TimerOfThisThread();
  MutexLock lock(mutex);
  while (!stopping || !sockets.empty()) {
    if (sockets.empty()) {
      changed.Wait(mutex);
      continue;
    }
    UniqueFd socket = std::move(sockets.front());
    sockets.pop_front();
    socket_closing = true;
    lock.Unlock();
    {
      const Kicked kicked(timer);
      ReadAway(socket);
      socket.Reset();
    }
    lock.Lock();
    socket_closing = false;
  }
  timer_delete(timer);
  --running;
  changed.NotifyAll();
}

Closer::Closer() : shared_(std::make_shared<Shared>()) {
  struct sigaction nothing = {};
  nothing.sa_handler = [](int) {};
  sigaction(KickSignal(), &nothing, nullptr);
  {
    const MutexLock lock(shared_->mutex);
    shared_->running = kThreads + 1;
  }
  // Detached: one that waits for a stopped file system is left behind.
  const auto start = [&](const char* name, void (Shared::*work)()) {
    std::thread thread([shared = shared_, work] { (*shared.*work)(); });
    pthread_setname_np(thread.native_handle(), name);
    thread.detach();
  };
  start("closer-sockets", &Shared::CloseSockets);
  for (int i = 0; i < kThreads; ++i) start("closer", &Shared::CloseOthers);
}

Closer::~Closer() {
  const auto deadline = CondVar::Deadline(kCloserPatience);
  const MutexLock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.NotifyAll();
  while (shared_->running > 0 &&
         shared_->changed.WaitUntil(shared_->mutex, deadline)) {
  }
  // What is left goes with the process.
  for (UniqueFd& fd :
       shared_->received.Remove([](const UniqueFd&) { return true; })) {
    fd.Release();
  }
  for (UniqueFd& socket : shared_->sockets) socket.Release();
}

void Closer::Discard(const Principal& who, UniqueFd fd) {
  if (!fd) return;
  {
    const MutexLock lock(shared_->mutex);
    shared_->received.Push(who, std::move(fd));
  }
  shared_->changed.NotifyAll();
}

void Closer::CloseSession(UniqueFd socket) {
  if (!socket) return;
  // A forked child may hold the peer's end; shutdown ends the session for it
  // too.
  shutdown(socket.get(), SHUT_RDWR);
  {
    const MutexLock lock(shared_->mutex);
    shared_->sockets.push_back(std::move(socket));
  }
  shared_->changed.NotifyAll();
}

size_t Closer::waiting_of(const Principal& who) const {
  const MutexLock lock(shared_->mutex);
  return shared_->received.waiting(who) + shared_->closing.count(who);
}

size_t Closer::sockets_waiting() const {
  const MutexLock lock(shared_->mutex);
  return shared_->sockets.size() + (shared_->socket_closing ? 1 : 0);
}

size_t Closer::waiting() const {
  const MutexLock lock(shared_->mutex);
  return shared_->received.waiting() + shared_->closing.size();
}

}  // namespace sluice::daemon
