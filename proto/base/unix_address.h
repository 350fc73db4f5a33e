// Converts a path to the kernel's address of a unix socket.
//
// Thread safety: pure function.
#pragma once

#include <sys/un.h>

#include <cstddef>
#include <optional>
#include <string>

namespace sluice {

inline constexpr size_t kLongestSocketPath = sizeof(sockaddr_un::sun_path) - 1;

// Returns the address of the socket at `path`. It is never an abstract address,
// which would have no permissions. Returns nullopt if `path` is empty or longer
// than kLongestSocketPath.
std::optional<sockaddr_un> UnixAddress(const std::string& path);

}  // namespace sluice
