// The daemon's HTTP port, asked by hand.
#pragma once

#include <string>

namespace sluice::testing {

// The whole answer of `address` ("127.0.0.1:PORT") to a GET.
std::string HttpGet(const std::string& address, const std::string& path);

}  // namespace sluice::testing
