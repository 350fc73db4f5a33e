#include "daemon/service/channel.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// Edge-triggered: packets that wait for their turn wake the loop only once, and
// a writable socket that other limits stop (those of descriptors) does not make
// the loop spin.
constexpr uint32_t kWaitToRead = EPOLLIN | EPOLLET;
constexpr uint32_t kWaitToWrite = EPOLLOUT | EPOLLET;
constexpr absl::Duration kLookAgain = absl::Milliseconds(100);

int64_t PacketSize(const Outgoing& out) {
  return static_cast<int64_t>(out.packet.ByteSizeLong());
}

}  // namespace

Channel::Channel(Shared* shared, SessionId id, Principal who, UniqueFd socket,
                 UniqueFd pidfd)
    : shared_(*shared),
      id_(id),
      who_(std::move(who)),
      discard_([this](UniqueFd fd) {
        discarded_ |= static_cast<bool>(fd);
        shared_.closer->Discard(who_, std::move(fd));
      }),
      socket_(std::move(socket)),
      pidfd_(std::move(pidfd)) {
  if (socket_) {
    shared_.loop->Add(socket_.get(), kWaitToRead,
                      [this](uint32_t events) { OnSocket(events); });
  }
  shared_.loop->Add(pidfd_.get(), EPOLLIN, [this](uint32_t) {
    // The pidfd stays readable.
    shared_.loop->Remove(pidfd_.get());
    shared_.handlers.gone(id_);
  });
}

Channel::~Channel() {
  CloseSocket();
  shared_.queued.erase(this);
  if (pidfd_) shared_.loop->Remove(pidfd_.get());
}

void Channel::OnSocket(uint32_t events) {
  if (queue_.empty()) return shared_.turns.Add(who_, id_);
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) return shared_.handlers.ended(id_);
  Flush();
}

bool Channel::ReadOne() {
  if (!socket_ || !queue_.empty()) return false;
  auto received = wire::Receive(socket_.get(), MSG_DONTWAIT, discard_);
  if (absl::IsUnavailable(received.status())) return false;
  if (!received.ok()) {
    shared_.handlers.broken(id_, std::string(received.status().message()));
    return false;
  }
  if (!received->has_value()) {
    shared_.handlers.ended(id_);
    return false;
  }
  shared_.handlers.message(id_, **received);
  for (UniqueFd& fd : (*received)->fds) discard_(std::move(fd));
  if (discarded_ && socket_ &&
      shared_.closer->waiting_of(who_) > Closer::kMostOfAUser) {
    shared_.handlers.broken(
        id_, fmt::format("more than {} file descriptors that {} sent wait to "
                         "be closed",
                         Closer::kMostOfAUser, Name(who_)));
    return false;
  }
  return socket_ && queue_.empty();
}

absl::Status Channel::SendOne(const Outgoing& out) {
  const int count = static_cast<int>(out.fds.size());
  SLUICE_RETURN_IF_ERROR(
      shared_.in_flight.Take(socket_.get(), who_, count, shared_.loop->now()));
  std::vector<int> fds;
  fds.reserve(out.fds.size());
  for (const auto& fd : out.fds) fds.push_back(fd->get());
  absl::Status sent = wire::Send(socket_.get(), out.packet, fds);
  if (!sent.ok()) shared_.in_flight.Undo(socket_.get(), count);
  return sent;
}

void Channel::Wait(const absl::Status& why) {
  // Not stalled by its own fault.
  const bool others = ShortageOf(why) == Shortage::kOpenFiles;
  if (others) stalled_since_ = shared_.loop->now();
  // The kernel reports room a moment before it counts the last packet as
  // received.
  retry_at_ = shared_.loop->now() + (others ? InFlight::kAgain : kLookAgain);
}

void Channel::Send(Outgoing out) {
  if (!socket_) return;
  if (queue_.empty() && !held_) {
    const absl::Status sent = SendOne(out);
    // An event of the socket reports a peer that is gone.
    if (sent.ok() || absl::IsUnavailable(sent)) return;
    if (!absl::IsResourceExhausted(sent)) {
      return shared_.handlers.broken(id_, std::string(sent.message()));
    }
    stalled_since_ = shared_.loop->now();
    Wait(sent);
    shared_.loop->Change(socket_.get(), kWaitToWrite);
  }
  const int64_t size = PacketSize(out);
  absl::Status room = shared_.quotas->Ask(who_, Resource::kQueuedBytes, size);
  if (room.ok()) {
    queued_bytes_ += size;
    queue_.push_back(std::move(out));
    shared_.queued.insert(this);
    if (queue_.size() <= kMaxQueued) return;
    room = absl::ResourceExhaustedError(
        fmt::format("{} messages wait and it reads none", kMaxQueued));
  }
  DropQueue();
  shared_.handlers.broken(id_, std::string(room.message()));
}

void Channel::DropQueue() {
  shared_.quotas->GiveBack(who_, Resource::kQueuedBytes, queued_bytes_);
  queued_bytes_ = 0;
  queue_.clear();
  shared_.queued.erase(this);
  retry_at_ = absl::InfiniteFuture();
}

void Channel::Release() {
  held_ = false;
  if (!socket_ || queue_.empty()) return;
  stalled_since_ = shared_.loop->now();
  shared_.loop->Change(socket_.get(), kWaitToWrite);
  Flush();
}

void Channel::Flush() {
  if (held_) return;
  while (!queue_.empty()) {
    const absl::Status sent = SendOne(queue_.front());
    if (absl::IsResourceExhausted(sent)) return Wait(sent);
    const int64_t size = PacketSize(queue_.front());
    shared_.quotas->GiveBack(who_, Resource::kQueuedBytes, size);
    queued_bytes_ -= size;
    queue_.pop_front();
    stalled_since_ = shared_.loop->now();
    if (!sent.ok()) return shared_.handlers.ended(id_);
  }
  shared_.queued.erase(this);
  retry_at_ = absl::InfiniteFuture();
  shared_.loop->Change(socket_.get(), kWaitToRead);
}

void Channel::Retry(absl::Time now) {
  if (socket_ && retry_at_ <= now) Flush();
}

absl::Time Channel::stall_deadline() const {
  return queue_.empty() || !socket_ || held_ ? absl::InfiniteFuture()
                                             : stalled_since_ + kStallLimit;
}

bool Channel::HasStalled(absl::Time now) {
  if (stall_deadline() > now) return false;
  Retry(absl::InfiniteFuture());
  return stall_deadline() <= now;
}

int Channel::unread_memfds() {
  int unread = 0;
  if (queue_.empty() && socket_ &&
      ioctl(socket_.get(), SIOCOUTQ, &unread) == 0 && unread == 0) {
    unread_memfds_ = 0;
  }
  return unread_memfds_;
}

void Channel::Leave() {
  if (!socket_) return;
  shared_.loop->Remove(socket_.get());
  DropQueue();
  socket_.Reset();
}

void Channel::CloseSocket() {
  if (!socket_) return;
  shared_.loop->Remove(socket_.get());
  DropQueue();
  // Unlike close, this also ends the session if a forked child has the peer's
  // end.
  shutdown(socket_.get(), SHUT_RDWR);
  if (UniqueFd done = shared_.in_flight.End(std::move(socket_))) {
    shared_.closer->CloseSession(std::move(done));
  }
}

}  // namespace sluice::daemon
