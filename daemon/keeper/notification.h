// Parses a datagram of sd_notify(3): the parts that the keeper needs. Pure.
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

// InvalidArgument: the datagram has two messages, a malformed name
// (IsDescriptorName) or a zero byte, or is too long or empty.
absl::StatusOr<Notification> ParseNotification(std::string_view text);

}  // namespace sluice::daemon
