// Parses one datagram of sd_notify(3), as far as the keeper needs it; pure.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sluice::daemon {

// systemd's limit too.
inline constexpr size_t kMaxNotification = 4096;

struct Notification {
  enum class Kind {
    kOther,  // READY=1, STATUS=…: nothing to do
    kPut,
    kRemove,
    kBarrier,
  };
  Kind kind = Kind::kOther;
  std::string name;  // of kPut and kRemove
};

// InvalidArgument: two messages at once, a malformed name (IsDescriptorName), a
// zero byte, too long, or empty.
absl::StatusOr<Notification> ParseNotification(std::string_view text);

}  // namespace sluice::daemon
