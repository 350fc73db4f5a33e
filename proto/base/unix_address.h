// Where a unix socket is, as the kernel wants it.
//
// Thread safety: pure function.
#pragma once

#include <sys/un.h>

#include <cstddef>
#include <optional>
#include <string>

namespace sluice {

inline constexpr size_t kLongestSocketPath = sizeof(sockaddr_un::sun_path) - 1;

// The address of the socket at `path`; never an abstract one, which has no
// permissions. nullopt: `path` is empty, or longer than kLongestSocketPath.
std::optional<sockaddr_un> UnixAddress(const std::string& path);

}  // namespace sluice
