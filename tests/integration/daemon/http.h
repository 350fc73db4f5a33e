// Requests of the daemon's HTTP pages without a library. An address is
// 127.0.0.1:PORT or the path of a unix socket.
#pragma once

#include <string>

#include "proto/base/unique_fd.h"

namespace sluice::testing {

// Returns the whole answer.
std::string HttpGet(const std::string& address, const std::string& path);
std::string HttpAsk(const std::string& address, const std::string& request);

// Empty if there is no listener.
UniqueFd HttpConnect(const std::string& address);
// Reads until the other end closes.
std::string HttpRest(int fd);

}  // namespace sluice::testing
