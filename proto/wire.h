// One end of a session: packets with file descriptors over SOCK_SEQPACKET.
//
// The trust boundary. Everything read is checked here, once: packet size,
// truncation (MSG_TRUNC, MSG_CTRUNC), parse errors, more descriptors than the
// message may carry (surplus ones are closed, or discarded as the caller says:
// closing a peer's descriptor may block). Above this file fields are in
// range or the packet was refused.
//
// Thread safety: one thread may send while another receives; two senders need
// a lock of their own.
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

// The versions of the session protocol that this build speaks.
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
  // Some did not arrive because this process has as many open as it may: no
  // fault of the peer's, which cannot send more than arrive.
  bool lost_fds = false;
};

// The newest that both speak. FailedPrecondition names both ranges, and which
// side is to be upgraded. `client.oldest` 0 stands for its newest.
absl::StatusOr<uint32_t> AgreeOnProtocol(Protocols client,
                                         Protocols daemon = kProtocols);

// Sends without blocking. ResourceExhausted: the peer does not read (its
// buffer is full); Unavailable: it is gone. `fds` stay the caller's.
absl::Status Send(int socket, const Packet& packet,
                  std::span<const int> fds = {});

// What becomes of a descriptor that came and is not handed on.
using Discard = std::function<void(UniqueFd)>;

// Receives one packet. nullopt: the peer closed. `flags`: MSG_DONTWAIT gives
// Unavailable with nothing there. Without `discard` descriptors that are not
// in the message are closed here, and lost ones are an error: only for a
// trusted peer.
absl::StatusOr<std::optional<Message>> Receive(int socket, int flags = 0,
                                               const Discard& discard = {});

// Is every field of a request in range (names printable and short, sizes
// positive and below 2^60, ordinals below 1024, the right number of fds)?
absl::Status CheckRequest(const Message& message);

// A listening socket at `path` (blocking; a stale one is replaced; one a live
// daemon serves is AlreadyExists) and a connection to it.
absl::StatusOr<UniqueFd> Listen(const std::string& path, int mode);
absl::StatusOr<UniqueFd> Connect(const std::string& path);

// Bytes as a sealed memfd, and back (checked: sealed, at most kMaxMemfdBytes).
absl::StatusOr<UniqueFd> ToMemfd(std::string_view name, std::string_view bytes);
absl::StatusOr<std::string> FromMemfd(const UniqueFd& fd);
// The same checks alone. What passes can neither block nor change.
absl::Status CheckMemfd(const UniqueFd& fd);

}  // namespace sluice::wire
