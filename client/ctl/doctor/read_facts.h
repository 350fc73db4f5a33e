// Reads this machine, and asks its daemon: the edge below which the doctor is
// pure.
//
// Thread safety: one call at a time.
#pragma once

#include <string>

#include "client/ctl/doctor/facts.h"

namespace sluice::ctl {

struct SocketPaths {
  std::string session, admin;
};

// Changes nothing. What cannot be found out is absent.
Facts ReadFacts(const SocketPaths& sockets);

// The process that serves in this folder, by who holds its `lock`, whoever
// asks; of the keeper it is `keeper.lock`. 0: none is seen.
int FindHolder(const std::string& lock);

}  // namespace sluice::ctl
