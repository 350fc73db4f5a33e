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

// The process that holds `lock`: `lock` of a folder is the daemon's that serves
// there, `keeper.lock` the keeper's. Works for every user. 0: none is seen.
int FindHolder(const std::string& lock);

}  // namespace sluice::ctl
