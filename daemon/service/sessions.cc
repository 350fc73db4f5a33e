#include "daemon/service/sessions.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "daemon/crash/crash_point.h"
#include "proto/base/find.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// Events are edge-triggered. So packets that wait for their turn wake the loop
// once, and a writable socket does not make the loop spin while its packets
// wait for other descriptors to be received.
constexpr uint32_t kWaitToRead = EPOLLIN | EPOLLET;
constexpr uint32_t kWaitToWrite = EPOLLOUT | EPOLLET;
constexpr absl::Duration kLookAgain = absl::Milliseconds(100);

int64_t PacketSize(const Outgoing& out) {
  return static_cast<int64_t>(out.packet.ByteSizeLong());
}

// How long a new request may wait behind a flood. Not shorter, because each
// poll takes about 0.1 ms.
constexpr absl::Duration kTurn = absl::Microseconds(250);

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
    // Removed, because the pidfd of an ended process stays readable.
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
  // While other peers use up the limit, this peer does not count as stalled.
  const bool others = ShortageOf(why) == Shortage::kOpenFiles;
  if (others) stalled_since_ = shared_.loop->now();
  // The kernel reports room a moment before it counts a packet as received.
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
  // shutdown ends the session even if a forked child has the peer's end.
  shutdown(socket_.get(), SHUT_RDWR);
  if (UniqueFd done = shared_.in_flight.End(std::move(socket_))) {
    shared_.closer->CloseSession(std::move(done));
  }
}

void Sessions::Watch(SessionId id, const Principal& who, UniqueFd socket,
                     UniqueFd pidfd) {
  channels_[id] = std::make_unique<Channel>(
      &shared_, id, who, std::move(socket), std::move(pidfd));
}

void Sessions::Adopt(SessionId id, const Principal& who, UniqueFd socket,
                     UniqueFd pidfd) {
  shared_.quotas->Charge(who, Resource::kSessions);
  if (socket) shared_.in_flight.Adopt(socket.get(), who);
  Watch(id, who, std::move(socket), std::move(pidfd));
}

Channel* Sessions::Find(SessionId id) const {
  const auto* const found = FindOrNull(channels_, id);
  return found != nullptr ? found->get() : nullptr;
}

void Sessions::Send(SessionId id, Outgoing out) {
  Channel* const channel = Find(id);
  if (channel == nullptr) return;
  out.packet.set_generation(generation_);
  channel->Send(std::move(out));
  Pass("packet-sent");
}

void Sessions::HoldUntilKept(SessionId id, int use_page) {
  Channel* const channel = Find(id);
  if (channel == nullptr || !handover_.keeps()) return;
  handover_.Keep(Handover::SocketOf(id), channel->socket().get());
  handover_.Keep(Handover::ProcessOf(id), channel->pidfd());
  handover_.Keep(Handover::UsePageOf(id), use_page);
  Pass("session-put");
  channel->Hold();
  handover_.WhenKept([this, id] {
    Pass("session-stored");
    if (Channel* const kept = Find(id)) kept->Release();
    Pass("session-released");
  });
}

void Sessions::EndSocket(SessionId id) {
  Channel* const channel = Find(id);
  if (channel == nullptr) return;
  const std::string name = Handover::SocketOf(id);
  if (channel->open() && handover_.Kept(name)) {
    // If no descriptor is free for the duplicate, the store closes the socket.
    auto socket = channel->socket().Duplicate();
    socket.ok() ? handover_.DropSocket(name, *std::move(socket))
                : handover_.Drop(name);
  }
  channel->CloseSocket();
}

void Sessions::Forget(SessionId id) {
  auto forgotten = channels_.extract(id);
  if (forgotten.empty()) return;
  handover_.Drop(Handover::ProcessOf(id));
  Pass("process-dropped");
  shared_.turns.Remove(id);
  shared_.quotas->GiveBack(forgotten.mapped()->who(), Resource::kSessions);
  if (graveyard_.empty()) {
    shared_.loop->Post([this] { graveyard_.clear(); });
  }
  graveyard_.push_back(std::move(forgotten.mapped()));
}

void Sessions::Leave() {
  for (const auto& [id, channel] : channels_) channel->Leave();
}

bool Sessions::TakeTurns() {
  const absl::Time end = shared_.loop->now() + kTurn;
  absl::Time now = shared_.loop->now();
  while (now < end) {
    const auto id = shared_.turns.Next();
    if (!id) return false;
    Channel* const channel = Find(*id);
    if (channel != nullptr && channel->ReadOne()) {
      shared_.turns.Add(channel->who(), *id);
    }
    const absl::Time start = std::exchange(now, shared_.loop->now());
    shared_.turns.Spent(now - start);
  }
  return !shared_.turns.empty();
}

absl::Time Sessions::deadline() const {
  absl::Time next = shared_.in_flight.deadline();
  // Called twice a turn, so it looks only at channels with a queue.
  for (const Channel* channel : shared_.queued) {
    next = std::min({next, channel->stall_deadline(), channel->retry_at()});
  }
  return next;
}

void Sessions::Expire() {
  const absl::Time now = shared_.loop->now();
  for (UniqueFd& done : shared_.in_flight.Sweep(now)) {
    shared_.closer->CloseSession(std::move(done));
  }
  std::vector<SessionId> queued;
  for (const Channel* channel : shared_.queued) queued.push_back(channel->id());
  std::ranges::sort(queued);
  for (SessionId id : queued) {
    if (Channel* const channel = Find(id)) channel->Retry(now);
  }
  for (SessionId id : queued) {
    Channel* const channel = Find(id);
    if (channel == nullptr || !channel->HasStalled(now)) continue;
    shared_.handlers.broken(
        id, fmt::format("it has read nothing for {:g} s",
                        absl::ToDoubleSeconds(Channel::kStallLimit)));
  }
}

}  // namespace sluice::daemon
