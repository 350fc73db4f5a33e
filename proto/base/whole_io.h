// Reads or writes all bytes, however the kernel splits them.
//
// Thread safety: safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice {

// Reads from the current position of `fd` to its end. `what` names the file in
// messages. InvalidArgument: there are more than `most` bytes.
absl::StatusOr<std::string> ReadAll(int fd, size_t most,
                                    const std::string& what);

// Reads the first `size` bytes of a file and ignores the position of `fd`.
// Unavailable (EIO): the file is shorter.
absl::StatusOr<std::string> ReadAllAt(int fd, size_t size,
                                      const std::string& what);

// Writes all of `bytes` to a blocking descriptor.
absl::Status WriteAll(int fd, std::string_view bytes, const std::string& what);

}  // namespace sluice
