// All bytes of a descriptor, or into one, however the kernel cuts them.
//
// Thread safety: safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice {

// From where `fd` stands to its end. `what` is what it is, for messages.
// InvalidArgument: there are more than `most` bytes.
absl::StatusOr<std::string> ReadAll(int fd, size_t most,
                                    const std::string& what);

// The first `size` bytes of a file, wherever `fd` stands in it. Unavailable
// (EIO): the file is shorter.
absl::StatusOr<std::string> ReadAllAt(int fd, size_t size,
                                      const std::string& what);

// Writes all of `bytes` to a blocking descriptor: waits for room.
absl::Status WriteAll(int fd, std::string_view bytes, const std::string& what);

}  // namespace sluice
