// One end of a session: packets with file descriptors over SOCK_SEQPACKET.
//
// This is the trust boundary. Everything read is checked here, once: the
// packet's size, truncation (MSG_TRUNC, MSG_CTRUNC), parse errors, and
// descriptors beyond those that the message may carry. Surplus descriptors are
// closed, or discarded by the caller's function, because closing a peer's
// descriptor may block. Above this file every field is in range, or the packet
// was refused.
//
// Thread safety: one thread may send while another receives; two senders need a
// lock of their own.
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
  // The peer is not at fault: it cannot send more than arrive.
  bool lost_fds = false;
};

// Returns the newest version that both speak. FailedPrecondition names both
// ranges and the side to upgrade. `client.oldest` 0 stands for its newest.
absl::StatusOr<uint32_t> AgreeOnProtocol(Protocols client,
                                         Protocols daemon = kProtocols);

// Sends without blocking. ResourceExhausted: the peer does not read, and its
// buffer is full. Unavailable: the peer is gone. The caller keeps `fds`.
absl::Status Send(int socket, const Packet& packet,
                  std::span<const int> fds = {});

// Disposes of a received descriptor that is not handed on.
using Discard = std::function<void(UniqueFd)>;

// Receives one packet. Returns nullopt if the peer closed. With `flags` =
// MSG_DONTWAIT returns Unavailable if there is no packet. Without `discard`,
// descriptors that are not in the message are closed here and lost descriptors
// are an error, which suits only a trusted peer.
absl::StatusOr<std::optional<Message>> Receive(int socket, int flags = 0,
                                               const Discard& discard = {});

// Checks that every field of a request is in range: names printable and short,
// sizes positive and below 2^60, ordinals below 1024, the right number of fds.
absl::Status CheckRequest(const Message& message);

// Listens at `path` (blocking), and connects to it. A stale socket is replaced;
// AlreadyExists if a live daemon serves it.
absl::StatusOr<UniqueFd> Listen(const std::string& path, int mode);
absl::StatusOr<UniqueFd> Connect(const std::string& path);

// Writes bytes to a sealed memfd, and reads them back. Reading checks that the
// memfd is sealed and has at most kMaxMemfdBytes.
absl::StatusOr<UniqueFd> ToMemfd(std::string_view name, std::string_view bytes);
absl::StatusOr<std::string> FromMemfd(const UniqueFd& fd);
// Only checks. A memfd that passes can neither block a reader nor change.
absl::Status CheckMemfd(const UniqueFd& fd);

}  // namespace sluice::wire
