// What the process got from its starter: systemd, or sluiced-keeper, which
// speaks as systemd does (sd_listen_fds(3), sd_notify(3)).
//
// Thread safety: none. Called once, before there are threads: it changes the
// environment, so that no process of the daemon's takes this for its own.
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

// SD_LISTEN_FDS_START: the number of the first descriptor that is handed on.
inline constexpr int kFirstHandedOn = 3;

// The value of a signal from the keeper that ends the service; any other signal
// that ends the daemon leaves what ranks hold to the next one.
inline constexpr int kEndsService = 0x534c43;

inline constexpr int kMaxDescriptorName = 16;

// Whether it is 1 to 16 of a-z, 0-9 and '-', as names of kept descriptors are.
// A descriptor from a socket unit has the unit's name ("sluiced.socket"), so it
// is never taken for one of these.
bool IsDescriptorName(std::string_view name);

struct Starter {
  // $NOTIFY_SOCKET; empty: there is no listener and no store.
  std::string notify_socket;
  // Kept by the store for an earlier daemon, by name. If two have one name (the
  // daemon never stores two), the first.
  std::map<std::string, UniqueFd> stored;
  // The sluiced-keeper that started this process ($SLUICE_KEEPER_PID). Absent:
  // systemd, or no store.
  std::optional<pid_t> keeper;
  // From socket activation: all with names that IsDescriptorName refuses.
  std::vector<std::pair<std::string, UniqueFd>> sockets;
  // How many the store takes ($FDSTORE: systemd 254 and later, the keeper, or
  // the unit of an earlier systemd); absent: it does not say.
  std::optional<int64_t> store_size;
  // How often WATCHDOG=1 is expected; absent: never.
  std::optional<absl::Duration> watchdog;
  // The limit of open files before the daemon raises it: the next daemon is
  // started with it, and more than it are not handed on.
  int64_t open_files = 0;
};

// Reads all of it and removes it from the environment; every descriptor becomes
// close-on-exec. InvalidArgument names the malformed variable.
absl::StatusOr<Starter> TakeFromStarter();

// How many descriptors a store may be trusted with: its `store_size`, or else
// `configured`, but never more than the next daemon can be handed: systemd
// would fail each of its starts if they exceed the limit of open files, or
// their names the size of an environment variable.
int64_t StoreCapacity(const Starter& starter, int64_t configured);

}  // namespace sluice::daemon
