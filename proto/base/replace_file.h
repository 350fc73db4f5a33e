// Replaces the contents of a file.
//
// Thread safety: safe, except for two calls at once on one path.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace sluice {

// Replaces `path` atomically: a reader finds all of the old bytes or all of
// `bytes`, also after a crash. Writes and syncs `path`.new with mode 0600 and
// renames it to `path`. After a failure the old file is unchanged and
// `path`.new does not exist. SyncFolder makes the new name durable.
absl::Status ReplaceFile(const std::string& path, std::string_view bytes);

// Makes new names in `folder` survive a loss of power.
absl::Status SyncFolder(const std::string& folder);

}  // namespace sluice
