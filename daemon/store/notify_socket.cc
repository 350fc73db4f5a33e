#include "daemon/store/notify_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// poll cannot report when the user's limit of descriptors in flight
// (ETOOMANYREFS, unix(7)) has room again, so this long passes between tries.
constexpr absl::Duration kLookForRoom = absl::Milliseconds(2);

absl::Status CheckAddress(const std::string& address) {
  if (address.size() >= 2 && (address[0] == '/' || address[0] == '@') &&
      address.size() < sizeof(sockaddr_un::sun_path)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format(
      "$NOTIFY_SOCKET is '{}', it must be a path from / or an abstract socket "
      "(@), of at most {} characters",
      address, sizeof(sockaddr_un::sun_path) - 1));
}

// Sends the datagram, with `fd` attached unless it is negative. Never blocks.
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

absl::StatusOr<std::unique_ptr<NotifySocket>> NotifySocket::Make(
    const std::string& address) {
  SLUICE_RETURN_IF_ERROR(CheckAddress(address));
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
  // An abstract name is not NUL-terminated; the address's length ends it.
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
    // poll reports room only for a full queue (EAGAIN). For the other errors,
    // sleeps before the next try.
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
