#include "daemon/store/descriptor_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "daemon/crash/crash_point.h"
#include "daemon/store/descriptor_name.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// A message has a line per field, so a text is one line.
std::string OneLine(std::string_view text, size_t most) {
  std::string line(text.substr(0, most));
  std::replace_if(
      line.begin(), line.end(),
      [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return line;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DescriptorStore>> DescriptorStore::Start(
    Options options) {
  std::unique_ptr<NotifySocket> socket;
  if (!options.notify_socket.empty()) {
    SLUICE_ASSIGN_OR_RETURN(socket, NotifySocket::Make(options.notify_socket));
  }
  return std::unique_ptr<DescriptorStore>(
      new DescriptorStore(std::move(options), std::move(socket)));
}

DescriptorStore::DescriptorStore(Options options,
                                 std::unique_ptr<NotifySocket> socket)
    : options_(std::move(options)),
      socket_(std::move(socket)),
      names_(options_.stored.begin(), options_.stored.end()) {
  if (socket_ == nullptr) return;
  thread_ = std::thread([this] { Work(); });
  pthread_setname_np(thread_.native_handle(), "fd-store");
}

DescriptorStore::~DescriptorStore() {
  if (socket_ == nullptr) return;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  socket_->Cancel();
  changed_.NotifyAll();
  thread_.join();
}

absl::Status DescriptorStore::Put(std::string_view name, int fd) {
  if (!IsDescriptorName(name)) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' cannot name a stored descriptor: 1 to {} of a-z, 0-9 "
                    "and '-'",
                    name, kMaxDescriptorName));
  }
  if (!keeps()) return absl::OkStatus();
  const MutexLock lock(mutex_);
  if (names_.contains(name)) {
    return absl::AlreadyExistsError(
        fmt::format("a descriptor '{}' is stored", name));
  }
  if (static_cast<int64_t>(names_.size()) >= options_.capacity) {
    return absl::ResourceExhaustedError(
        fmt::format("the descriptor store is full: it holds {} of {} (raise "
                    "FileDescriptorStoreMax= and LimitNOFILE= of the unit, or "
                    "--max-descriptors of sluiced-keeper)",
                    names_.size(), options_.capacity));
  }
  if (queue_.size() >= kMostQueued) {
    return absl::ResourceExhaustedError(
        fmt::format("the descriptor store does not take what is sent: {} wait",
                    queue_.size()));
  }
  UniqueFd kept(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!kept) return ErrnoStatus(errno, "duplicate a descriptor to store it");
  names_.emplace(name);
  Push({.message = fmt::format("FDSTORE=1\nFDNAME={}\nFDPOLL=0", name),
        .fd = std::move(kept),
        .done = {}});
  return absl::OkStatus();
}

void DescriptorStore::Remove(std::string_view name) {
  const MutexLock lock(mutex_);
  const auto found = names_.find(name);
  if (found == names_.end()) return;
  names_.erase(found);
  if (socket_ == nullptr) return;
  Push({.message = fmt::format("FDSTOREREMOVE=1\nFDNAME={}", name),
        .fd = {},
        .done = {}});
}

void DescriptorStore::RemoveAll() {
  std::set<std::string, std::less<>> names;
  {
    const MutexLock lock(mutex_);
    names = names_;
  }
  for (const std::string& name : names) Remove(name);
}

void DescriptorStore::Flush(Done done) {
  if (!keeps()) return Post(std::move(done), absl::OkStatus());
  const MutexLock lock(mutex_);
  Push({.message = {}, .fd = {}, .done = std::move(done)});
}

void DescriptorStore::Ready(std::string_view status) {
  Tell("READY=1\nSTATUS=" + OneLine(status, kMostStatus));
}
void DescriptorStore::Status(std::string_view status) {
  Tell("STATUS=" + OneLine(status, kMostStatus));
}
void DescriptorStore::Watchdog() { Tell("WATCHDOG=1"); }
void DescriptorStore::Stopping() { Tell("STOPPING=1"); }
void DescriptorStore::ExtendTimeout(absl::Duration by) {
  Tell(fmt::format("EXTEND_TIMEOUT_USEC={}", absl::ToInt64Microseconds(by)));
}

bool DescriptorStore::Has(std::string_view name) const {
  const MutexLock lock(mutex_);
  return names_.contains(name);
}

int64_t DescriptorStore::stored() const {
  const MutexLock lock(mutex_);
  return static_cast<int64_t>(names_.size());
}

// Who does not read what is stored need not be told either.
void DescriptorStore::Tell(std::string message) {
  if (socket_ == nullptr) return;
  const MutexLock lock(mutex_);
  if (queue_.size() >= kMostQueued) return;
  Push({.message = std::move(message), .fd = {}, .done = {}});
}

void DescriptorStore::Push(Item item) {
  queue_.push_back(std::move(item));
  changed_.NotifyAll();
}

void DescriptorStore::Post(Done done, absl::Status status) {
  auto task = [done = std::move(done), status = std::move(status)] {
    done(status);
  };
  if (options_.post) return options_.post(std::move(task));
  task();
}

void DescriptorStore::Work() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (queue_.empty()) {
      changed_.Wait(mutex_);
      continue;
    }
    std::deque<Item> batch = std::exchange(queue_, {});
    lock.Unlock();
    SendBatch(std::move(batch));
    lock.Lock();
  }
  std::deque<Item> dropped = std::exchange(queue_, {});
  lock.Unlock();
  for (Item& item : dropped) {
    if (!item.done) continue;
    Post(std::move(item.done),
         absl::CancelledError("the descriptor store was closed"));
  }
}

void DescriptorStore::SendBatch(std::deque<Item> batch) {
  const absl::Time deadline = MonotonicClock().Now() + options_.deadline;
  absl::Status met;
  bool waited_for = false;
  for (Item& item : batch) {
    if (item.done) {
      waited_for = true;
      continue;
    }
    // Those behind a fault are tried too: a removal that is not sent leaves
    // an orphan. Once the time is over, each only fits or not.
    const absl::Status sent =
        socket_->Send(item.message, deadline, item.fd.get());
    if (met.ok()) met = sent;
    item.fd.Reset();
    Pass(CrashPoint::kMessageSent);
  }
  if (!waited_for) return;
  if (met.ok()) met = socket_->Barrier(deadline);
  Pass(CrashPoint::kBarrierPassed);
  for (Item& item : batch) {
    if (item.done) Post(std::move(item.done), met);
  }
}

}  // namespace sluice::daemon
