// Reads or writes all bytes, even if the kernel transfers them in parts.
//
// Thread safety: safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice {

// Reads from the current position of `fd` to the end of the file. `what` names
// the file in messages. InvalidArgument: more than `most` bytes remain.
absl::StatusOr<std::string> ReadAll(int fd, size_t most,
                                    const std::string& what);

// Reads the first `size` bytes of a file, whatever the position of `fd` is.
// Unavailable (EIO): the file is shorter.
absl::StatusOr<std::string> ReadAllAt(int fd, size_t size,
                                      const std::string& what);

// Writes all of `bytes` to a blocking descriptor.
absl::Status WriteAll(int fd, std::string_view bytes, const std::string& what);

}  // namespace sluice
