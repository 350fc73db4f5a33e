#include "daemon/store/descriptor_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "daemon/crash/crash_point.h"
#include "proto/base/clock.h"
#include "proto/base/pidfd.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// A dead keeper's socket closes a little before its pidfd shows the death.
constexpr absl::Duration kEndShows = absl::Milliseconds(50);

// Returns `text` without line breaks, because a message has a line per field.
std::string OneLine(std::string_view text, size_t most) {
  std::string line(text.substr(0, most));
  std::replace_if(
      line.begin(), line.end(),
      [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return line;
}

// poll cannot report when the user's limit of descriptors in flight
// (ETOOMANYREFS, unix(7)) has room again.
constexpr absl::Duration kLookForRoom = absl::Milliseconds(2);

// Sends `message`, with `fd` unless that is negative. Never blocks.
ssize_t SendNow(int socket, std::string_view message, int fd) {
  iovec data = {const_cast<char*>(message.data()), message.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  }
  return sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

absl::Duration Left(absl::Time deadline) {
  return std::max(deadline - MonotonicClock().Now(), absl::ZeroDuration());
}

}  // namespace

absl::StatusOr<std::unique_ptr<DescriptorStore>> DescriptorStore::Start(
    Options options, const std::map<std::string, UniqueFd>& stored) {
  auto store =
      std::unique_ptr<DescriptorStore>(new DescriptorStore(std::move(options)));
  {
    const MutexLock lock(store->mutex_);
    for (const auto& [name, fd] : stored) store->kept_.insert(name);
  }
  const Options& given = store->options_;
  if (given.notify_socket.empty()) return store;
  SLUICE_ASSIGN_OR_RETURN(store->socket_,
                          NotifySocket::Make(given.notify_socket));
  store->wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!store->wake_) return ErrnoStatus(errno, "make an eventfd");
  if (given.keeper) {
    store->keeper_ = PidfdOf(*given.keeper);
    if (!store->keeper_ && errno != ESRCH) {
      return PidfdFault(errno, "watch the keeper");
    }
    // If the keeper is not the parent, it has died, and its pid may be reused.
    if (!store->keeper_ || getppid() != *given.keeper) store->Lose();
  }
  store->thread_ = std::thread([raw = store.get()] { raw->Work(); });
  pthread_setname_np(store->thread_.native_handle(), "fd-store");
  return store;
}

DescriptorStore::~DescriptorStore() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  socket_->Cancel();
  eventfd_write(wake_.get(), 1);
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
  if (kept_.contains(name)) {
    return absl::AlreadyExistsError(
        fmt::format("a descriptor '{}' is stored", name));
  }
  if (static_cast<int64_t>(kept_.size()) >= options_.capacity) {
    return absl::ResourceExhaustedError(
        fmt::format("the descriptor store is full: it holds {} of {} (raise "
                    "FileDescriptorStoreMax= and LimitNOFILE= of the unit, or "
                    "--max-descriptors of sluiced-keeper)",
                    kept_.size(), options_.capacity));
  }
  if (queue_.size() >= kMostQueued) {
    return absl::ResourceExhaustedError(fmt::format(
        "the descriptor store reads nothing: {} messages wait", queue_.size()));
  }
  UniqueFd again(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!again) return ErrnoStatus(errno, "duplicate a descriptor to store it");
  kept_.emplace(name);
  Push({.message = fmt::format("FDSTORE=1\nFDNAME={}\nFDPOLL=0", name),
        .fd = std::move(again),
        .changes_store = true});
  return absl::OkStatus();
}

void DescriptorStore::Remove(std::string_view name) {
  const MutexLock lock(mutex_);
  const auto found = kept_.find(name);
  if (found == kept_.end()) return;
  kept_.erase(found);
  if (socket_ == nullptr) return;
  Push({.message = fmt::format("FDSTOREREMOVE=1\nFDNAME={}", name),
        .changes_store = true});
}

void DescriptorStore::RemoveAll(const std::set<std::string>& but) {
  std::vector<std::string> names;
  {
    const MutexLock lock(mutex_);
    for (const std::string& name : kept_) {
      if (!but.contains(name)) names.push_back(name);
    }
  }
  for (const std::string& name : names) Remove(name);
}

void DescriptorStore::Flush(Done done) {
  if (!keeps()) return Post(std::move(done), absl::OkStatus());
  const MutexLock lock(mutex_);
  Push({.done = std::move(done)});
}

void DescriptorStore::Ready(std::string_view status) {
  Tell("READY=1\nSTATUS=" + OneLine(status, kMostStatus));
}
void DescriptorStore::Watchdog() { Tell("WATCHDOG=1"); }

bool DescriptorStore::Has(std::string_view name) const {
  const MutexLock lock(mutex_);
  return kept_.contains(name);
}

// Drops the message if the queue is full, because the store then reads nothing.
void DescriptorStore::Tell(std::string message) {
  if (socket_ == nullptr) return;
  const MutexLock lock(mutex_);
  if (queue_.size() >= kMostQueued) return;
  Push({.message = std::move(message)});
}

void DescriptorStore::Push(Item item) {
  const bool asleep = queue_.empty();
  queue_.push_back(std::move(item));
  if (asleep) eventfd_write(wake_.get(), 1);
}

void DescriptorStore::Post(Done done, absl::Status status) {
  auto task = [done = std::move(done), status = std::move(status)] {
    done(status);
  };
  if (options_.post) return options_.post(std::move(task));
  task();
}

void DescriptorStore::Work() {
  while (WaitForWork()) {
    std::deque<Item> batch = std::exchange(unsent_, {});
    {
      const MutexLock lock(mutex_);
      std::move(queue_.begin(), queue_.end(), std::back_inserter(batch));
      queue_.clear();
    }
    SendBatch(std::move(batch));
  }
  std::deque<Item> rest;
  {
    const MutexLock lock(mutex_);
    rest.swap(queue_);
  }
  for (Item& item : rest) {
    if (!item.done) continue;
    Post(std::move(item.done),
         absl::CancelledError("the descriptor store was closed"));
  }
}

bool DescriptorStore::WaitForWork() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (stopping_ || !queue_.empty()) return !stopping_;
    }
    std::array<pollfd, 2> polls = {
        {{wake_.get(), POLLIN, 0}, {lost_ ? -1 : keeper_.get(), POLLIN, 0}}};
    poll(polls.data(), polls.size(), -1);
    eventfd_t woken;
    eventfd_read(wake_.get(), &woken);
    KeeperEndsWithin(absl::ZeroDuration());
  }
}

bool DescriptorStore::KeeperEndsWithin(absl::Duration longest) {
  if (lost_ || !keeper_) return lost_;
  pollfd ended = {keeper_.get(), POLLIN, 0};
  const timespec timeout = absl::ToTimespec(longest);
  if (ppoll(&ended, 1, &timeout, nullptr) == 1) Lose();
  return lost_;
}

void DescriptorStore::Lose() {
  lost_ = true;
  if (!options_.on_loss) return;
  Post([lost = options_.on_loss](const absl::Status&) { lost(); },
       absl::OkStatus());
}

// No removal may overtake its put, so after a fault, later puts and removals
// wait for the next batch. Other messages are sent nevertheless.
absl::Status DescriptorStore::SendAll(std::deque<Item>& batch,
                                      absl::Time deadline) {
  absl::Status met;
  for (Item& item : batch) {
    if (item.done) continue;
    absl::Status sent;
    if (!item.changes_store || unsent_.empty()) {
      sent = socket_->Send(item.message, deadline, item.fd.get());
      if (met.ok()) met = sent;
      Pass("message-sent");
    }
    const bool is_sent = sent.ok() && unsent_.empty();
    if (item.changes_store && !is_sent) unsent_.push_back(std::move(item));
    item.fd.Reset();
  }
  return met;
}

void DescriptorStore::SendBatch(std::deque<Item> batch) {
  absl::Status met;
  if (!lost_) {
    const absl::Time deadline = MonotonicClock().Now() + options_.deadline;
    met = SendAll(batch, deadline);
    const bool waited_for = std::ranges::any_of(
        batch, [](const Item& item) { return static_cast<bool>(item.done); });
    if (waited_for) {
      if (met.ok()) met = socket_->Barrier(deadline);
      Pass("barrier-passed");
    }
  }
  if (absl::IsUnavailable(met)) KeeperEndsWithin(kEndShows);
  if (lost_) {
    unsent_.clear();
    met = absl::OkStatus();
  }
  for (Item& item : batch) {
    if (item.done) Post(std::move(item.done), met);
  }
}

absl::StatusOr<std::unique_ptr<NotifySocket>> NotifySocket::Make(
    const std::string& address) {
  const size_t longest = sizeof(sockaddr_un::sun_path) - 1;
  if (address.size() < 2 || address.size() > longest ||
      (address[0] != '/' && address[0] != '@')) {
    return absl::InvalidArgumentError(fmt::format(
        "$NOTIFY_SOCKET is '{}', it must be an absolute path or an abstract "
        "socket (@), of at most {} characters",
        address, longest));
  }
  UniqueFd cancel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!cancel) return ErrnoStatus(errno, "make an eventfd");
  return std::unique_ptr<NotifySocket>(
      new NotifySocket(address, std::move(cancel)));
}

void NotifySocket::Cancel() { eventfd_write(cancel_.get(), 1); }

absl::Status NotifySocket::ConnectNow() {
  UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "make a notify socket");
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, address_.data(), address_.size());
  const bool abstract = address_[0] == '@';
  if (abstract) to.sun_path[0] = '\0';
  // An abstract name ends at the given length, not at a zero byte.
  const size_t size =
      offsetof(sockaddr_un, sun_path) + address_.size() + (abstract ? 0 : 1);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&to),
              static_cast<socklen_t>(size)) != 0) {
    return absl::UnavailableError(fmt::format(
        "no process listens at $NOTIFY_SOCKET {} ({}): the descriptor store is "
        "gone",
        address_, std::strerror(errno)));
  }
  socket_ = std::move(fd);
  return absl::OkStatus();
}

absl::StatusOr<bool> NotifySocket::Wait(int fd, short events,
                                        absl::Duration longest) {
  std::array<pollfd, 2> polls = {{{cancel_.get(), POLLIN, 0}, {fd, events, 0}}};
  const timespec timeout = absl::ToTimespec(longest);
  const int got = ppoll(polls.data(), polls.size(), &timeout, nullptr);
  if (got < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
  if (got <= 0) return false;
  if (polls[0].revents != 0) {
    return absl::CancelledError("the descriptor store was closed");
  }
  return true;
}

absl::Status NotifySocket::Late(std::string_view what) const {
  return absl::DeadlineExceededError(fmt::format(
      "the descriptor store at {} {} in time: what was stored since its last "
      "answer may be lost with this process",
      address_, what));
}

absl::Status NotifySocket::Send(std::string_view message, absl::Time deadline,
                                int fd) {
  if (!socket_) SLUICE_RETURN_IF_ERROR(ConnectNow());
  while (SendNow(socket_.get(), message, fd) < 0) {
    const int error = errno;
    if (error == EINTR) continue;
    const bool full = error == EAGAIN || error == ENOBUFS;
    if (!full && error != ETOOMANYREFS) {
      socket_.Reset();
      return absl::UnavailableError(
          fmt::format("cannot send to $NOTIFY_SOCKET {}: {}", address_,
                      std::strerror(error)));
    }
    const absl::Duration left = Left(deadline);
    if (left == absl::ZeroDuration()) return Late("takes nothing");
    // poll reports room only for EAGAIN.
    const bool told = error == EAGAIN;
    SLUICE_RETURN_IF_ERROR(Wait(told ? socket_.get() : -1, POLLOUT,
                                told ? left : std::min(left, kLookForRoom))
                               .status());
  }
  return absl::OkStatus();
}

absl::Status NotifySocket::Barrier(absl::Time deadline) {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "make a pipe for the descriptor store's answer");
  }
  const UniqueFd answer(ends[0]);
  UniqueFd sent(ends[1]);
  SLUICE_RETURN_IF_ERROR(Send("BARRIER=1", deadline, sent.get()));
  sent.Reset();  // from here on only the store has this end
  for (absl::Duration left = Left(deadline); left > absl::ZeroDuration();
       left = Left(deadline)) {
    SLUICE_ASSIGN_OR_RETURN(const bool answered,
                            Wait(answer.get(), POLLIN, left));
    if (answered) return absl::OkStatus();
  }
  return Late("did not answer");
}

}  // namespace sluice::daemon
