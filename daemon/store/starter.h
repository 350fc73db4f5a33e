// What the process got from its starter: systemd, or sluiced-keeper, which uses
// the same protocols (sd_listen_fds(3), sd_notify(3)).
//
// Thread safety: none. Call before there are threads: it changes the
// environment, so that processes that the daemon starts do not use these
// variables.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

// The number of the first inherited descriptor (SD_LISTEN_FDS_START).
inline constexpr int kFirstHandedOn = 3;

// The value of a signal by which the keeper ends the service. After any other
// ending signal, the daemon leaves what ranks have to the next daemon.
inline constexpr int kEndsService = 0x534c43;

inline constexpr int kMaxDescriptorName = 16;

// Returns whether `name` can name a kept descriptor: 1 to 16 of a-z, 0-9 and
// '-'. The name of a descriptor from a socket unit has a dot
// ("sluiced.socket"), so the two kinds cannot be confused.
bool IsDescriptorName(std::string_view name);

struct Starter {
  // $NOTIFY_SOCKET; empty: there is neither a listener for messages nor a
  // store.
  std::string notify_socket;
  // The descriptors that the store kept for an earlier daemon, by name. If two
  // have the same name (the daemon never stores two), the first one.
  std::map<std::string, UniqueFd> stored;
  // The pid of the sluiced-keeper that started this process
  // ($SLUICE_KEEPER_PID). Unset: systemd started it, or there is no store.
  std::optional<pid_t> keeper;
  // Sockets from socket activation: all descriptors with names that
  // IsDescriptorName refuses.
  std::vector<std::pair<std::string, UniqueFd>> sockets;
  // How many descriptors the store keeps ($FDSTORE: set by systemd 254 and
  // later, by the keeper, or in the unit of an earlier systemd). Unset:
  // unknown.
  std::optional<int64_t> store_size;
  // The interval at which WATCHDOG=1 is expected; unset: it is not.
  std::optional<absl::Duration> watchdog;
  // The limit of open files before the daemon raises it. The next daemon starts
  // with this limit, and can inherit no more descriptors.
  int64_t open_files = 0;
};

// Reads all variables and removes them from the environment; makes every
// inherited descriptor close-on-exec. InvalidArgument names the malformed
// variable.
absl::StatusOr<Starter> TakeFromStarter();

// Returns how many descriptors the daemon may store: `store_size`, or else
// `configured`, but never more than the next daemon can inherit. systemd could
// not start it if there were more than the limit of open files, or if their
// names exceeded the size of an environment variable.
int64_t StoreCapacity(const Starter& starter, int64_t configured);

// Socket activation by a .socket unit: the session socket exists before the
// first daemon and after the last, so a client that connects waits for a daemon
// instead of being refused.
//
// Returns the socket of `sockets` (Starter::sockets) that listens at `path`,
// which is in an existing folder; empty if `sockets` is. InvalidArgument, in
// one line: there are several sockets, or it is not a listening SOCK_SEQPACKET
// socket, or it listens elsewhere.
absl::StatusOr<UniqueFd> TakeHandedListener(
    std::vector<std::pair<std::string, UniqueFd>> sockets,
    const std::string& path);

// Returns whether both are the same socket.
bool IsSameSocket(const UniqueFd& a, const UniqueFd& b);

}  // namespace sluice::daemon
