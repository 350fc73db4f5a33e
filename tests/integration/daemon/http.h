// The daemon's pages, asked for by hand. An address is 127.0.0.1:PORT or the
// path of a unix socket.
#pragma once

#include <string>

#include "proto/base/unique_fd.h"

namespace sluice::testing {

// The whole answer.
std::string HttpGet(const std::string& address, const std::string& path);
std::string HttpAsk(const std::string& address, const std::string& request);

// Empty if there is no listener.
UniqueFd HttpConnect(const std::string& address);
// Until the other end closes.
std::string HttpRest(int fd);

}  // namespace sluice::testing
