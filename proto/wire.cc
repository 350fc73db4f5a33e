#include "proto/wire.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::wire {
namespace {

// The least and the most descriptors of a packet.
struct FdRange {
  size_t min = 0;
  size_t max = 0;
};

FdRange AllowedFds(const Packet& packet) {
  // A body that the packet lacks reads as empty.
  const Request& request = packet.request();
  const Reply& reply = packet.reply();
  const Event& event = packet.event();
  if (request.has_hello()) return {0, kMaxShown};
  // An observer gets no pages; the third descriptor is sim's clocks.
  if (reply.has_welcome()) return {0, 3};
  if (reply.has_granted()) {
    const auto extents =
        static_cast<size_t>(reply.granted().extent_bytes_size());
    return {extents, extents};
  }
  // A snapshot may carry a memfd for its long text, and one for a plan.
  if (reply.has_snapshot()) return {0, 2};
  const bool one = request.has_submit_profile() || event.has_plan_ready() ||
                   event.has_plan_changed() ||
                   event.taken_over().plan_id() != 0;
  return one ? FdRange{1, 1} : FdRange{};
}

absl::Status SendFault(int error) {
  switch (error) {
    case ETOOMANYREFS:
      return ShortOf(Shortage::kOpenFiles,
                     "too many descriptors of this user are on their way to "
                     "processes that do not receive them");
    case EAGAIN:
    case ENOBUFS:
      return absl::ResourceExhaustedError(
          "the peer does not read its session socket: its buffer is full");
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
      return absl::UnavailableError("the peer closed the session");
    default:
      return ErrnoStatus(error, "send on the session socket");
  }
}

// Owns the descriptors that arrived with a packet, and discards those that are
// not taken.
class ReceivedFds {
 public:
  ReceivedFds(msghdr& header, const Discard& discard) : discard_(discard) {
    for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr;
         part = CMSG_NXTHDR(&header, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
        continue;
      }
      const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
        fds_.emplace_back(fd);
      }
    }
  }
  ~ReceivedFds() {
    for (UniqueFd& fd : fds_) {
      if (discard_) discard_(std::move(fd));
    }
  }
  ReceivedFds(const ReceivedFds&) = delete;

  size_t size() const { return fds_.size(); }
  std::vector<UniqueFd> Take(size_t most) {
    const auto end = fds_.begin() + std::min(most, fds_.size());
    std::vector<UniqueFd> taken(std::make_move_iterator(fds_.begin()),
                                std::make_move_iterator(end));
    fds_.erase(fds_.begin(), end);
    return taken;
  }

 private:
  const Discard& discard_;
  std::vector<UniqueFd> fds_;
};

absl::StatusOr<Message> Parse(const char* bytes, size_t size, ReceivedFds& fds,
                              bool lost) {
  // Protobuf would print to stderr what the Status states.
  static const auto silenced = google::protobuf::SetLogHandler(nullptr);
  (void)silenced;
  Message message;
  message.lost_fds = lost;
  if (!message.packet.ParseFromArray(bytes, static_cast<int>(size))) {
    return absl::InvalidArgumentError(
        fmt::format("a packet of {} bytes is not a sluice.wire.Packet", size));
  }
  const FdRange allowed = AllowedFds(message.packet);
  if (fds.size() < allowed.min && !lost) {
    return absl::InvalidArgumentError(
        fmt::format("a packet came with {} file descriptors, it needs {}",
                    fds.size(), allowed.min));
  }
  message.fds = fds.Take(allowed.max);
  return message;
}

}  // namespace

absl::Status Send(int socket, const Packet& packet, std::span<const int> fds) {
  const size_t size = packet.ByteSizeLong();
  if (size > kMaxPacketBytes) {
    return absl::InvalidArgumentError(fmt::format(
        "a packet of {} bytes is over the limit of {}: send what is "
        "large as a memfd",
        size, kMaxPacketBytes));
  }
  if (fds.size() > kMaxFds) {
    return absl::InvalidArgumentError(fmt::format(
        "{} file descriptors in one packet, the limit is {}: send more packets",
        fds.size(), kMaxFds));
  }
  std::string bytes = packet.SerializeAsString();
  iovec data = {bytes.data(), bytes.size()};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  for (;;) {
    if (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
      return absl::OkStatus();
    }
    if (errno != EINTR) return SendFault(errno);
  }
}

absl::StatusOr<std::optional<Message>> Receive(int socket, int flags,
                                               const Discard& discard) {
  std::array<char, kMaxPacketBytes> buffer;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control;
  iovec data = {buffer.data(), buffer.size()};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t size;
  do {
    size = recvmsg(socket, &header, flags | MSG_CMSG_CLOEXEC);
    // The kernel reports a connection reset once, before the packets that the
    // peer sent, one of which may state the reason.
  } while (size < 0 && (errno == EINTR || errno == ECONNRESET));
  if (size < 0) {
    if (errno == EAGAIN) return absl::UnavailableError("no packet is waiting");
    return ErrnoStatus(errno, "receive on the session socket");
  }
  ReceivedFds fds(header, discard);
  // 0 is the end of the stream, or an empty packet, which no peer sends.
  if (size == 0) return std::nullopt;
  if (header.msg_flags & MSG_TRUNC) {
    return absl::InvalidArgumentError(
        fmt::format("a packet is over the limit of {} bytes", kMaxPacketBytes));
  }
  const bool lost = (header.msg_flags & MSG_CTRUNC) != 0;
  if (lost && !discard) {
    return Mark(
        absl::InvalidArgumentError(fmt::format(
            "a packet's file descriptors did not all arrive ({} did): more "
            "than {} were sent, or this process is at its limit of open files "
            "(ulimit -n)",
            fds.size(), kMaxFds)),
        fds.size() < kMaxFds ? Shortage::kOpenFiles : Shortage::kNone);
  }
  auto message = Parse(buffer.data(), static_cast<size_t>(size), fds, lost);
  if (!message.ok()) return message.status();
  return *std::move(message);
}

}  // namespace sluice::wire
