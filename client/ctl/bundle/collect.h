// Collects the contents of a support bundle: asks the daemon, reads files, runs
// tools.
//
// Thread safety: one call at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ctl/doctor/read_facts.h"

namespace sluice::ctl {

// One file of a support bundle.
struct Item {
  std::string name;                  // "status.json"
  std::string what;                  // description for people
  absl::StatusOr<std::string> text;  // or the reason why it is missing
};

// Collects all items, each with its text or the reason why it is missing.
// Secrets are removed. Works without a daemon.
std::vector<Item> Collect(const SocketPaths& sockets, int64_t journal_lines);

}  // namespace sluice::ctl
