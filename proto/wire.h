// One end of a session: packets with file descriptors over SOCK_SEQPACKET.
//
// This is the trust boundary. Everything read is checked here, once: the
// packet's size, truncation (MSG_TRUNC, MSG_CTRUNC), parse errors, and
// descriptors beyond those that the message may carry. Surplus descriptors are
// closed here, or passed to the caller's `discard`, because closing a peer's
// descriptor may block. Code above this file sees only packets with all fields
// in range.
//
// Thread safety: one thread may send while another receives; two senders need a
// lock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"
#include "proto/base/units.h"
#include "proto/session.pb.h"

namespace sluice::wire {

// The range of versions of the session protocol that this build speaks.
struct Protocols {
  uint32_t oldest = 1;
  uint32_t newest = 1;
};
extern const Protocols kProtocols;
inline constexpr int kMaxPacketBytes = 64 << 10;
inline constexpr int kMaxMaps = 64;  // mapped leases in one step report
inline constexpr int kMaxFds = 253;  // SCM_RIGHTS, unix(7)
inline constexpr int64_t kMaxMemfdBytes = int64_t{64} << 20;

struct Message {
  Packet packet;
  std::vector<UniqueFd> fds;
  // Some descriptors were lost because this process has too many open files.
  // Not the peer's fault: it cannot send more descriptors than arrive.
  bool lost_fds = false;
};

// Returns the newest version that both sides speak. FailedPrecondition names
// both ranges and the side to upgrade. A `client.oldest` of 0 means that the
// client speaks only its newest version.
absl::StatusOr<uint32_t> AgreeOnProtocol(Protocols client,
                                         Protocols daemon = kProtocols);

// Sends without blocking. ResourceExhausted: the peer is not reading, and its
// buffer is full. Unavailable: the peer is gone. The caller keeps `fds`.
absl::Status Send(int socket, const Packet& packet,
                  std::span<const int> fds = {});

// Called with each received descriptor that is not passed on; must dispose of
// it.
using Discard = std::function<void(UniqueFd)>;

// Receives one packet. Returns nullopt if the peer closed the socket. With
// `flags` = MSG_DONTWAIT, Unavailable means that there is no packet. Without
// `discard`, surplus descriptors are closed here and lost descriptors are an
// error; that suits only a trusted peer.
absl::StatusOr<std::optional<Message>> Receive(int socket, int flags = 0,
                                               const Discard& discard = {});

// Checks that every field of a request is in range: names printable and short,
// sizes positive and below 2^60, ordinals below 1024, the right number of fds.
absl::Status CheckRequest(const Message& message);

// Listen makes a blocking socket at `path`, and Connect connects to it. Listen
// replaces a stale socket. AlreadyExists: a live daemon serves `path`.
absl::StatusOr<UniqueFd> Listen(const std::string& path, int mode);
absl::StatusOr<UniqueFd> Connect(const std::string& path);

// ToMemfd writes bytes to a sealed memfd, and FromMemfd reads them. FromMemfd
// checks that the memfd is sealed and has at most kMaxMemfdBytes.
absl::StatusOr<UniqueFd> ToMemfd(std::string_view name, std::string_view bytes);
absl::StatusOr<std::string> FromMemfd(const UniqueFd& fd);
// Checks the memfd without reading it. A memfd that passes can neither block a
// reader nor change.
absl::Status CheckMemfd(const UniqueFd& fd);

}  // namespace sluice::wire
