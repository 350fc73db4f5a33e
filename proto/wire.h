// Sends and receives packets with file descriptors over SOCK_SEQPACKET.
//
// This is the trust boundary. All input is checked here, once, so code above
// this file sees only packets with all fields in range.
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
#include "proto/base/ids.h"
#include "proto/base/step_report.h"
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
inline constexpr size_t kMaxShown = 32;  // device nodes sent with a Hello
// A frozen daemon (daemon/frozen) answers every connection with an error that
// begins with these words; the reason follows.
inline constexpr std::string_view kFrozen = "sluiced is frozen";

struct Message {
  Packet packet;
  std::vector<UniqueFd> fds;
  // Some descriptors were lost, because this process has too many open files.
  bool lost_fds = false;
};

// Returns the newest version that both sides speak. FailedPrecondition names
// the side to upgrade. If `client.oldest` is 0, the client speaks only
// `client.newest`.
absl::StatusOr<uint32_t> AgreeOnProtocol(Protocols client,
                                         Protocols daemon = kProtocols);

// Sends without blocking. ResourceExhausted: the peer is not reading, and its
// buffer is full. Unavailable: the peer is gone. The caller keeps `fds`.
absl::Status Send(int socket, const Packet& packet,
                  std::span<const int> fds = {});

// Disposes of a received descriptor that is not passed on. Closing a peer's
// descriptor may block.
using Discard = std::function<void(UniqueFd)>;

// Returns nullopt if the peer closed the socket. With `flags` = MSG_DONTWAIT,
// Unavailable means that there is no packet. Omit `discard` only for a trusted
// peer: surplus descriptors are then closed here, and lost descriptors are an
// error.
absl::StatusOr<std::optional<Message>> Receive(int socket, int flags = 0,
                                               const Discard& discard = {});

// Checks that every field of a request is in range: names printable and short,
// sizes below 2^60 (a lease's also above 0), indices of GPUs and NUMA nodes
// below 1024, finite times, the right number of fds. InvalidArgument names the
// first field that is out of range, and the range.
// Unimplemented: this version does not know the request's kind.
absl::Status CheckRequest(const Message& message);
// Checks only the fields. A client calls it before it sends.
absl::Status CheckFields(const Request& request);
// InvalidArgument: a job cannot have this name; the message states why.
absl::Status CheckJob(const std::string& name);

// FromWire REQUIRES: CheckRequest has accepted the report.
void ToWire(const ::sluice::StepReport& report, StepReport* out);
::sluice::StepReport FromWire(const StepReport& report);

// `Listen` makes a blocking socket at `path`, and `Connect` connects to it. A
// stale socket is replaced. AlreadyExists: a live daemon serves `path`.
absl::StatusOr<UniqueFd> Listen(const std::string& path, int mode);
absl::StatusOr<UniqueFd> Connect(const std::string& path);

// ToMemfd writes bytes to a sealed memfd of at most kMaxMemfdBytes, and
// FromMemfd checks and reads one. The contents of a memfd that passes
// CheckMemfd cannot change, and reading them does not block.
absl::StatusOr<UniqueFd> ToMemfd(std::string_view name, std::string_view bytes);
absl::StatusOr<std::string> FromMemfd(const UniqueFd& fd);
absl::Status CheckMemfd(const UniqueFd& fd);

// Opens, for reading and writing, the device nodes that a rank sends with its
// Hello to prove that it may use GPUs, and omits those that cannot be opened.
// On a simulated node these are the file of `gpu` in the folder sim/ beside
// `socket`. On real GPUs they are `node` or, if `node` is empty, /dev/nvidia0
// to 31, because the daemon may number GPUs differently. Each open may wake a
// GPU, which takes seconds.
std::vector<UniqueFd> OpenGpuNodes(const std::string& socket, DeviceIndex gpu,
                                   const std::string& node = "");

}  // namespace sluice::wire
