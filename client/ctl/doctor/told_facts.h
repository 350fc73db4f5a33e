// Extracts facts from the texts of the kernel, systemd, nvidia-smi and sluiced.
//
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

// Returns a column of /proc/PID/limits in its units; unset if unlimited or
// missing.
enum class LimitKind { kSoft, kHard };
std::optional<int64_t> ToldLimit(const std::string& limits,
                                 const std::string& name, LimitKind kind);

// Returns the value of `key` in lines of "key: value" (/proc) or "key=value"
// (systemctl show); empty if there is no such line.
std::string ToldValue(const std::string& text, const std::string& key,
                      char separator = ':');

// Returns the process that holds a lock of this file, from /proc/locks; 0 if
// none is listed.
int ToldHolder(const std::string& locks, uint64_t device, uint64_t inode);

// Returns the user that listens at `address` ("127.0.0.1:9435"), or else at its
// port, from /proc/net/tcp and tcp6; unset if there is none.
std::optional<uid_t> ToldListener(const std::string& sockets,
                                  const std::string& address);

// Parses the output of `systemctl show`; unset if there is no such unit.
std::optional<UnitFacts> ToldUnit(const std::string& shown);

// Parses the output of `nvidia-smi --query-gpu=persistence_mode
// --format=csv,noheader`.
std::optional<std::vector<bool>> ToldPersistence(const std::string& csv);

// Reads a snapshot (daemon/README.md). Internal: it is not a snapshot.
absl::StatusOr<DaemonFacts> ToldDaemon(const std::string& snapshot);

}  // namespace sluice::ctl
