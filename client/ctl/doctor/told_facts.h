// Facts out of what the kernel, systemd, nvidia-smi and sluiced tell as text.
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

// A column of /proc/PID/limits, in its units; absent: unlimited, or not there.
enum class LimitKind { kSoft, kHard };
std::optional<int64_t> ToldLimit(const std::string& limits,
                                 const std::string& name, LimitKind kind);

// The value behind `key` and a separator, in lines of "key: value" (/proc) or
// "key=value" (systemctl show); empty: no such line.
std::string ToldValue(const std::string& text, const std::string& key,
                      char separator = ':');

// The process that holds a lock of this file, by /proc/locks; 0: none is seen.
int ToldHolder(const std::string& locks, uint64_t device, uint64_t inode);

// The user that listens at `address` ("127.0.0.1:9435"), by /proc/net/tcp and
// tcp6; else one that listens at its port. Absent: none.
std::optional<uid_t> ToldListener(const std::string& sockets,
                                  const std::string& address);

// By the output of `systemctl show`; absent: there is no such unit.
std::optional<UnitFacts> ToldUnit(const std::string& shown);

// By the output of
// `nvidia-smi --query-gpu=persistence_mode --format=csv,noheader`.
std::optional<std::vector<bool>> ToldPersistence(const std::string& csv);

// Reads a snapshot (daemon/README.md). Internal: it is not one.
absl::StatusOr<DaemonFacts> ToldDaemon(const std::string& snapshot);

}  // namespace sluice::ctl
