// Reads, writes and replaces whole files, even if the kernel transfers them in
// parts. `what` names the file in messages.
//
// Thread safety: safe, except for two calls of ReplaceFile at once on one path.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice {

// Reads from the current position of `fd` to the end of the file.
// InvalidArgument: more than `most` bytes remain.
absl::StatusOr<std::string> ReadAll(int fd, size_t most,
                                    const std::string& what);

// Reads the first `size` bytes of a file, whatever the position of `fd` is.
// Unavailable (EIO): the file is shorter.
absl::StatusOr<std::string> ReadAllAt(int fd, size_t size,
                                      const std::string& what);

// Writes all of `bytes` to a blocking descriptor.
absl::Status WriteAll(int fd, std::string_view bytes, const std::string& what);

// Replaces `path` atomically: a reader finds all of the old bytes or all of
// `bytes`, also after a crash. Writes and syncs `path`.new with mode 0600 and
// renames it. After a failure the old file is unchanged and `path`.new does not
// exist. SyncFolder makes the new name durable.
absl::Status ReplaceFile(const std::string& path, std::string_view bytes);

// Makes new names in `folder` survive a loss of power.
absl::Status SyncFolder(const std::string& folder);

}  // namespace sluice
