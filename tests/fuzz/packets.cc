#include "tests/fuzz/packets.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "proto/base/status.h"
#include "tests/fuzz/readers.h"

namespace sluice::fuzz {
namespace {

constexpr size_t kMostFds = 16;

// Calls sendmsg directly: wire::Send accepts only valid packets.
void SendRaw(int socket, std::string_view bytes, const std::vector<int>& fds) {
  iovec data = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFds * sizeof(int))> control;
  const size_t size = fds.size() * sizeof(int);
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(size);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(rights), fds.data(), size);
  }
  SLUICE_CHECK(sendmsg(socket, &header, MSG_NOSIGNAL) ==
               static_cast<ssize_t>(bytes.size()));
}

}  // namespace

uint8_t Input::Byte() {
  if (bytes_.empty()) return 0;
  const auto byte = static_cast<uint8_t>(bytes_.front());
  bytes_.remove_prefix(1);
  return byte;
}

std::string_view Input::Piece() {
  const size_t low = Byte(), high = Byte();
  const size_t size = std::min(low + 256 * high, bytes_.size());
  const std::string_view piece = bytes_.substr(0, size);
  bytes_.remove_prefix(size);
  return piece;
}

PacketPipe::PacketPipe() {
  int ends[2];
  SLUICE_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) ==
               0);
  from_ = UniqueFd(ends[0]);
  to_ = UniqueFd(ends[1]);
  auto memfd = wire::ToMemfd("fuzz", "{}");
  SLUICE_CHECK_OK(memfd.status());
  memfd_ = *std::move(memfd);
}

absl::StatusOr<std::optional<wire::Message>> PacketPipe::Pass(
    std::string_view bytes, size_t fds) {
  fds = std::min(fds, kMostFds);
  SendRaw(from_.get(), bytes, std::vector<int>(fds, memfd_.get()));
  size_t discarded = 0;
  auto message =
      wire::Receive(to_.get(), MSG_DONTWAIT, [&](UniqueFd) { ++discarded; });
  if (!message.ok()) CheckComplaint(message.status());
  const size_t kept =
      message.ok() && message->has_value() ? (*message)->fds.size() : 0;
  SLUICE_CHECK(kept + discarded == fds);
  return message;
}

}  // namespace sluice::fuzz
