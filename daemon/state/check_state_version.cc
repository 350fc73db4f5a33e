// The versions themselves are in a separate file: test programs define others.
#include <fmt/format.h>

#include "daemon/state/state_versions.h"

namespace sluice::daemon {

absl::Status CheckStateVersion(uint32_t written, uint32_t oldest_reader,
                               const StateVersions& own) {
  if (written >= own.oldest_read && oldest_reader <= own.written) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(fmt::format(
      "the saved state is of version {}, which daemons of version {} and later "
      "read; this one is of version {} and reads {} and later: {}",
      written, oldest_reader, own.written, own.oldest_read,
      written < own.oldest_read
          ? "start one that is between both first"
          : "start the daemon that wrote it, or a later one"));
}

}  // namespace sluice::daemon
