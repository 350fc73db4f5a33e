// What the process got from its starter: systemd, or sluiced-keeper, which uses
// the same protocols (sd_listen_fds(3), sd_notify(3)).
//
// Thread safety: none. Call TakeFromStarter before there are threads: it unsets
// environment variables, so that the daemon's child processes do not use them.
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

// SD_LISTEN_FDS_START of sd_listen_fds(3).
inline constexpr int kFirstHandedOn = 3;

// The value (sigqueue(3)) of a signal that ends the service. After any other
// ending signal, what ranks have is left to the next daemon.
inline constexpr int kEndsService = 0x534c43;

inline constexpr int kMaxDescriptorName = 16;

// Returns whether `name` has 1 to 16 characters of a-z, 0-9 and '-', as the
// names of stored descriptors have. Names of socket units have a dot
// ("sluiced.socket").
bool IsDescriptorName(std::string_view name);

struct Starter {
  // $NOTIFY_SOCKET; empty: no listener and no store.
  std::string notify_socket;
  // What the store kept for an earlier daemon, by name.
  std::map<std::string, UniqueFd> stored;
  // $SLUICE_KEEPER_PID. Unset: the starter is systemd or has no store.
  std::optional<pid_t> keeper;
  // Sockets of socket activation, with names that IsDescriptorName refuses.
  std::vector<std::pair<std::string, UniqueFd>> sockets;
  // $FDSTORE: set by systemd 254 and later, by the keeper, or in the unit of an
  // earlier systemd. Unset: unknown.
  std::optional<int64_t> store_size;
  // WATCHDOG=1 is expected at least this often; unset: never.
  std::optional<absl::Duration> watchdog;
  // The limit of open files before RaiseDescriptorLimit. The next daemon starts
  // with this limit, so it can inherit no more descriptors.
  int64_t open_files = 0;
};

// Takes all these variables out of the environment, and makes every inherited
// descriptor close-on-exec. InvalidArgument names the malformed variable.
absl::StatusOr<Starter> TakeFromStarter();

// Returns `store_size` or else `configured`, but not more than the next daemon
// can inherit: systemd could not start it with more descriptors than the limit
// of open files, or with more names than fit into an environment variable.
int64_t StoreCapacity(const Starter& starter, int64_t configured);

// Returns the session socket that a .socket unit made, the only one of
// `sockets` (Starter::sockets), which listens at `path`. Returns an empty
// UniqueFd if `sockets` is empty. With a .socket unit, a client that connects
// while no daemon runs waits instead of being refused. InvalidArgument, in one
// line: there are several sockets, or the socket is not a listening
// SOCK_SEQPACKET socket, or it listens elsewhere.
absl::StatusOr<UniqueFd> TakeHandedListener(
    std::vector<std::pair<std::string, UniqueFd>> sockets,
    const std::string& path);

bool IsSameSocket(const UniqueFd& a, const UniqueFd& b);

}  // namespace sluice::daemon
