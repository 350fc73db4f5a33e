#include "daemon/keeper/notify_receiver.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_split.h"
#include "daemon/store/starter.h"
#include "proto/base/status.h"
#include "proto/base/unix_address.h"

namespace sluice::daemon {
namespace {

constexpr int kMaxFds = 253;  // SCM_MAX_FD, unix(7)

void TakeControl(const cmsghdr& part, NotifyReceiver::Datagram& into) {
  if (part.cmsg_level != SOL_SOCKET) return;
  if (part.cmsg_type == SCM_CREDENTIALS) {
    ucred who;
    std::memcpy(&who, CMSG_DATA(&part), sizeof(who));
    into.sender = who.pid;
  }
  if (part.cmsg_type != SCM_RIGHTS) return;
  const size_t count = (part.cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (size_t i = 0; i < count; ++i) {
    int fd;
    std::memcpy(&fd, CMSG_DATA(&part) + i * sizeof(int), sizeof(int));
    into.fds.emplace_back(fd);
  }
}

using Kind = Notification::Kind;

Kind KindOf(std::string_view line) {
  if (line == "FDSTORE=1") return Kind::kPut;
  if (line == "FDSTOREREMOVE=1") return Kind::kRemove;
  if (line == "BARRIER=1") return Kind::kBarrier;
  return Kind::kOther;
}

absl::Status Refused(const char* why) {
  return absl::InvalidArgumentError(why);
}

}  // namespace

absl::StatusOr<NotifyReceiver> NotifyReceiver::Bind(const std::string& path) {
  const auto address = UnixAddress(path);
  if (!address) {
    return absl::InvalidArgumentError(fmt::format(
        "the socket path {} has more than {} characters: choose a shorter "
        "--runtime-dir",
        path, kLongestSocketPath));
  }
  UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  constexpr int kOn = 1;
  // The mode is set before bind: the socket is never open to other users.
  if (!fd || fchmod(fd.get(), 0600) != 0 ||
      setsockopt(fd.get(), SOL_SOCKET, SO_PASSCRED, &kOn, sizeof(kOn)) != 0 ||
      (unlink(path.c_str()) != 0 && errno != ENOENT) ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address),
           sizeof(*address)) != 0) {
    return ErrnoStatus(errno, "make the socket " + path);
  }
  return NotifyReceiver(path, std::move(fd));
}

NotifyReceiver::~NotifyReceiver() {
  if (socket_) unlink(path_.c_str());
}

std::optional<NotifyReceiver::Datagram> NotifyReceiver::Receive() {
  std::array<char, kMaxNotification> text;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred)) +
                                        CMSG_SPACE(sizeof(int) * kMaxFds)>
      control;
  iovec data = {text.data(), text.size()};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t got;
  do {
    got = recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return std::nullopt;
  Datagram datagram;
  datagram.text.assign(text.data(), static_cast<size_t>(got));
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr;
       part = CMSG_NXTHDR(&header, part)) {
    TakeControl(*part, datagram);
  }
  datagram.whole = (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  return datagram;
}

absl::StatusOr<Notification> ParseNotification(std::string_view text) {
  if (text.empty()) return Refused("it is empty");
  if (text.size() > kMaxNotification) return Refused("it is too long");
  if (text.find('\0') != text.npos) return Refused("it has a zero byte");
  constexpr std::string_view kName = "FDNAME=";
  Notification found;
  bool named = false;
  const std::vector<std::string> lines =
      absl::StrSplit(std::string(text), '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    if (line.starts_with(kName)) {
      if (named) return Refused("it has two names");
      named = true;
      found.name = line.substr(kName.size());
      continue;
    }
    const Kind kind = KindOf(line);
    if (kind == Kind::kOther) continue;
    if (found.kind != Kind::kOther) return Refused("it asks for two things");
    found.kind = kind;
  }
  if (found.kind == Kind::kBarrier && lines.size() != 1) {
    return Refused("a barrier stands alone");
  }
  if (found.kind == Kind::kOther) {
    found.name.clear();
  } else if (found.kind != Kind::kBarrier && !IsDescriptorName(found.name)) {
    return Refused("it does not name its descriptor");
  }
  return found;
}

absl::Status KeptDescriptors::Apply(const Notification& said,
                                    std::vector<UniqueFd> fds) {
  if (said.kind == Notification::Kind::kRemove) all_.erase(said.name);
  if (said.kind != Notification::Kind::kPut) return absl::OkStatus();
  if (fds.size() != 1) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' came with {} descriptors, it must be one", said.name,
                    fds.size()));
  }
  if (static_cast<int64_t>(all_.size()) >= capacity_ &&
      !all_.contains(said.name)) {
    return absl::ResourceExhaustedError(
        fmt::format("'{}' is one more than the {} of --max-descriptors",
                    said.name, capacity_));
  }
  all_.insert_or_assign(said.name, std::move(fds.front()));
  return absl::OkStatus();
}

}  // namespace sluice::daemon
