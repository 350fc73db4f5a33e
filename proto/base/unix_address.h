#pragma once

#include <sys/un.h>

#include <cstddef>
#include <optional>
#include <string>

namespace sluice {

inline constexpr size_t kLongestSocketPath = sizeof(sockaddr_un::sun_path) - 1;

// Returns the kernel's address of the unix socket at `path`, or nullopt if
// `path` is empty (an abstract address would have no permissions) or longer
// than kLongestSocketPath.
std::optional<sockaddr_un> UnixAddress(const std::string& path);

}  // namespace sluice
