#include "daemon/service/channel.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// So that one busy client does not keep the others waiting.
constexpr int kPacketsAWakeup = 16;
// Edge-triggered: writable space, not "writable", is the news. A descriptor
// limit (ETOOMANYREFS) leaves the socket writable and would spin otherwise.
constexpr uint32_t kWaitToWrite = EPOLLOUT | EPOLLET;

}  // namespace

Channel::Channel(Loop* loop, Closer* closer, uint32_t uid, UniqueFd socket,
                 UniqueFd pidfd, Handlers handlers)
    : loop_(loop),
      closer_(closer),
      uid_(uid),
      discard_([this](UniqueFd fd) {
        discarded_ |= static_cast<bool>(fd);
        closer_->Discard(uid_, std::move(fd));
      }),
      socket_(std::move(socket)),
      pidfd_(std::move(pidfd)),
      handlers_(std::move(handlers)) {
  loop_->Add(socket_.get(), EPOLLIN,
             [this](uint32_t events) { OnSocket(events); });
  loop_->Add(pidfd_.get(), EPOLLIN, [this](uint32_t) {
    // Reported once; the pidfd stays readable.
    loop_->Remove(pidfd_.get());
    handlers_.gone();
  });
}

Channel::~Channel() {
  CloseSocket();
  if (pidfd_) loop_->Remove(pidfd_.get());
}

void Channel::OnSocket(uint32_t events) {
  if (!queue_.empty()) {
    if ((events & (EPOLLHUP | EPOLLERR)) != 0) return handlers_.ended();
    return Flush();
  }
  ReadSome();
}

void Channel::ReadSome() {
  for (int i = 0; i < kPacketsAWakeup && socket_ && queue_.empty(); ++i) {
    auto received = wire::Receive(socket_.get(), MSG_DONTWAIT, discard_);
    if (absl::IsUnavailable(received.status())) return;
    if (!received.ok()) {
      return handlers_.broken(std::string(received.status().message()));
    }
    if (!received->has_value()) return handlers_.ended();
    handlers_.message(**received);
    for (UniqueFd& fd : (*received)->fds) discard_(std::move(fd));
    if (discarded_ && socket_ &&
        closer_->waiting_of(uid_) > Closer::kMostOfAUser) {
      return handlers_.broken(
          fmt::format("more than {} file descriptors that user {} sent wait to "
                      "be closed",
                      Closer::kMostOfAUser, uid_));
    }
  }
}

absl::Status Channel::SendOne(const Outgoing& out) {
  std::vector<int> fds;
  fds.reserve(out.fds.size());
  for (const auto& fd : out.fds) fds.push_back(fd->get());
  return wire::Send(socket_.get(), out.packet, fds);
}

void Channel::Send(Outgoing out) {
  if (!socket_) return;
  if (queue_.empty()) {
    const absl::Status sent = SendOne(out);
    // A peer that is gone shows on the socket itself.
    if (sent.ok() || absl::IsUnavailable(sent)) return;
    if (!absl::IsResourceExhausted(sent)) {
      return handlers_.broken(std::string(sent.message()));
    }
    stalled_since_ = loop_->now();
    loop_->Change(socket_.get(), kWaitToWrite);
  }
  queue_.push_back(std::move(out));
  if (queue_.size() > kMaxQueued) {
    queue_.clear();
    handlers_.broken(
        fmt::format("{} messages wait and it reads none", kMaxQueued));
  }
}

void Channel::Flush() {
  while (!queue_.empty()) {
    const absl::Status sent = SendOne(queue_.front());
    if (absl::IsResourceExhausted(sent)) return;
    queue_.pop_front();
    stalled_since_ = loop_->now();  // it reads
    if (!sent.ok()) return handlers_.ended();
  }
  loop_->Change(socket_.get(), EPOLLIN);
}

int Channel::unread_memfds() {
  // The kernel's word: what was sent and not received yet.
  int unread = 0;
  if (queue_.empty() && socket_ &&
      ioctl(socket_.get(), SIOCOUTQ, &unread) == 0 && unread == 0) {
    unread_memfds_ = 0;
  }
  return unread_memfds_;
}

absl::Time Channel::stall_deadline() const {
  return queue_.empty() || !socket_ ? absl::InfiniteFuture()
                                    : stalled_since_ + kStallLimit;
}

void Channel::CloseSocket() {
  if (!socket_) return;
  loop_->Remove(socket_.get());
  closer_->CloseSession(std::move(socket_));
  queue_.clear();
}

}  // namespace sluice::daemon
