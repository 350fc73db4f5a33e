// Extracts facts from what the kernel, systemd, nvidia-smi and sluiced print.
// Thread safety: pure functions.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ctl/doctor/facts.h"

namespace sluice::ctl {

// From /proc/PID/limits, in the units used there; unset: unlimited or missing.
enum class LimitKind { kSoft, kHard };
std::optional<int64_t> ToldLimit(const std::string& limits,
                                 const std::string& name, LimitKind kind);

// From lines of "key: value" (/proc) or "key=value" (systemctl show); empty if
// there is no such line.
std::string ToldValue(const std::string& text, const std::string& key,
                      char separator = ':');

// Returns the process that holds a lock of the file, from /proc/locks; 0: none.
int ToldHolder(const std::string& locks, uint64_t device, uint64_t inode);

// Returns the user that listens at `address` ("127.0.0.1:9435"), or else at the
// same port of any address. `sockets` is the text of /proc/net/tcp and tcp6.
std::optional<uid_t> ToldListener(const std::string& sockets,
                                  const std::string& address);

// From `systemctl show`; unset if there is no such unit.
std::optional<UnitFacts> ToldUnit(const std::string& shown);

// From `nvidia-smi --query-gpu=persistence_mode --format=csv,noheader`.
std::optional<std::vector<bool>> ToldPersistence(const std::string& csv);

// Internal: the text is no snapshot (daemon/README.md).
absl::StatusOr<DaemonFacts> ToldDaemon(const std::string& snapshot);

struct StartedWith {
  std::optional<std::string> config;  // as given, possibly a relative path
  // All words except the program, the configuration and the folder.
  std::vector<std::string> others;
};
// `words`: the daemon's command line, or empty if it is unknown.
StartedWith ReadStartedWith(const std::vector<std::string>& words);

}  // namespace sluice::ctl
