// What a support bundle is made of: asks the daemon, reads files, runs tools.
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
  std::string what;                  // for people
  absl::StatusOr<std::string> text;  // else why it is left out
};

// Each of them is there, or says why it is not; secrets are removed. Needs no
// daemon.
std::vector<Item> Collect(const SocketPaths& sockets, int64_t journal_lines);

}  // namespace sluice::ctl
