// Reads facts from this machine and its daemon.
// Thread safety: one call at a time.
#pragma once

#include <string>

#include "client/ctl/doctor/facts.h"

namespace sluice::ctl {

struct SocketPaths {
  std::string session, admin;
};

// Reads all facts and changes nothing. Facts that cannot be read are unset.
Facts ReadFacts(const SocketPaths& sockets);

// Returns the process that holds the file lock, or 0 if none is visible. In a
// runtime folder the daemon holds `lock` and the keeper `keeper.lock`.
int FindHolder(const std::string& lock);

}  // namespace sluice::ctl
