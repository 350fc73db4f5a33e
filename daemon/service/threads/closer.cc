#include "daemon/service/threads/closer.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <optional>
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
constexpr absl::Duration kCloserPatience = absl::Milliseconds(100);

int KickSignal() { return SIGRTMIN + 1; }

// Makes a timer that interrupts waiting system calls of this thread.
timer_t MakeKicker() {
  sigevent event = {};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = KickSignal();
  event._sigev_un._tid = gettid();
  timer_t kicker = {};
  SLUICE_CHECK(timer_create(CLOCK_MONOTONIC, &event, &kicker) == 0);
  return kicker;
}

void KickEach(timer_t kicker, timespec time) {
  const itimerspec kick = {.it_interval = time, .it_value = time};
  timer_settime(kicker, 0, &kick, nullptr);
}

void ReadAway(const UniqueFd& socket) {
  // recv has no room for a packet's descriptors, so the kernel drops them.
  char byte;
  for (int i = 0; i < kMaxDrained; ++i) {
    if (recv(socket.get(), &byte, 1, MSG_DONTWAIT) <= 0) return;
  }
}

}  // namespace

struct Closer::Shared {
  using Owner = std::optional<Principal>;  // unset: session sockets
  mutable Mutex mutex;
  CondVar changed;
  FairQueue<Owner, UniqueFd> waiting ABSL_GUARDED_BY(mutex);
  std::set<Owner> closing ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  int running ABSL_GUARDED_BY(mutex) = kThreads + 1;

  void Push(const Owner& owner, UniqueFd fd) {
    if (!fd) return;
    {
      const MutexLock lock(mutex);
      waiting.Push(owner, std::move(fd));
    }
    changed.NotifyAll();
  }
  size_t Of(const Owner& owner) const {
    const MutexLock lock(mutex);
    return waiting.waiting(owner) + closing.count(owner);
  }
  // If `sockets`, closes session sockets, also while stopping; else closes all
  // other descriptors.
  void Work(bool sockets) {
    const timer_t kicker = MakeKicker();
    const MonotonicClock clock;
    const auto may = [&](const Owner& owner) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return sockets == !owner && !closing.contains(owner);
    };
    MutexLock lock(mutex);
    while (true) {
      std::optional<std::pair<Owner, UniqueFd>> next;
      if (sockets || !stopping) next = waiting.Pop(may);
      if (!next && stopping) break;
      if (!next) {
        changed.Wait(mutex);
        continue;
      }
      auto& [owner, fd] = *next;
      closing.insert(owner);
      const absl::Time start = clock.Now();
      lock.Unlock();
      KickEach(kicker, {.tv_sec = 0, .tv_nsec = 1'000'000});
      if (sockets) ReadAway(fd);
      fd.Reset();
      KickEach(kicker, {});
      lock.Lock();
      closing.erase(owner);
      if (owner) waiting.Spent(owner, clock.Now() - start);
    }
    timer_delete(kicker);
    --running;
    changed.NotifyAll();
  }
};

Closer::Closer() : shared_(std::make_shared<Shared>()) {
  struct sigaction nothing = {};
  nothing.sa_handler = [](int) {};
  sigaction(KickSignal(), &nothing, nullptr);
  // Detached, because a stopped file system must not delay the daemon's end.
  for (int i = 0; i <= kThreads; ++i) {
    std::thread thread([shared = shared_, i] { shared->Work(i == 0); });
    pthread_setname_np(thread.native_handle(),
                       i == 0 ? "closer-sockets" : "closer");
    thread.detach();
  }
}

Closer::~Closer() {
  const auto deadline = CondVar::Deadline(kCloserPatience);
  const MutexLock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.NotifyAll();
  while (shared_->running > 0 &&
         shared_->changed.WaitUntil(shared_->mutex, deadline)) {
  }
  // The end of the process closes the descriptors that still wait.
  for (UniqueFd& fd :
       shared_->waiting.Remove([](const UniqueFd&) { return true; })) {
    fd.Release();
  }
}

void Closer::Discard(const Principal& who, UniqueFd fd) {
  shared_->Push(who, std::move(fd));
}

void Closer::CloseSession(UniqueFd socket) {
  // shutdown ends the session even if a forked child has the peer's end.
  shutdown(socket.get(), SHUT_RDWR);
  shared_->Push(std::nullopt, std::move(socket));
}

size_t Closer::waiting_of(const Principal& who) const {
  return shared_->Of(who);
}

size_t Closer::sockets_waiting() const { return shared_->Of(std::nullopt); }

size_t Closer::waiting() const {
  const MutexLock lock(shared_->mutex);
  return shared_->waiting.waiting() + shared_->closing.size();
}

}  // namespace sluice::daemon
