// A file's new contents, in the place of its old ones.
//
// Thread safety: safe, but for two at once on one path.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace sluice {

// Replaces `path` atomically: a reader finds all of the old bytes or all of
// `bytes`, also after a crash. They are written and synced beside it, as
// `path`.new of mode 0600, and take its name. After a fault the old file is
// there and nothing beside it. SyncFolder makes the new name durable.
absl::Status ReplaceFile(const std::string& path, std::string_view bytes);

// The names in `folder` survive a loss of power.
absl::Status SyncFolder(const std::string& folder);

}  // namespace sluice
