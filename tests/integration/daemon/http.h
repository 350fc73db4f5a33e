// HTTP requests to the daemon, by plain sockets. An address is 127.0.0.1:PORT
// or the path of a unix socket.
#pragma once

#include <string>

#include "proto/base/unique_fd.h"

namespace sluice::testing {

// HttpGet and HttpAsk return the whole answer, with its headers.
std::string HttpGet(const std::string& address, const std::string& path);
std::string HttpAsk(const std::string& address, const std::string& request);

// Returns an empty descriptor if there is no listener.
UniqueFd HttpConnect(const std::string& address);
// Reads until the other end closes.
std::string HttpRest(int fd);

}  // namespace sluice::testing
