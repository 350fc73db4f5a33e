// What the keeper holds for the daemon, by name.
//
// Thread safety: none needed; the keeper has one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/keeper/notification.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class KeptDescriptors {
 public:
  explicit KeptDescriptors(int64_t capacity) : capacity_(capacity) {}

  // Does what the daemon's message says; `fds` came with it. What is not kept
  // is closed, and with a barrier that is the answer. A put under a name that
  // is there replaces it: the later one counts. InvalidArgument: not one
  // descriptor with a put; ResourceExhausted: full.
  absl::Status Apply(const Notification& said, std::vector<UniqueFd> fds);

  const std::map<std::string, UniqueFd>& all() const { return all_; }
  int64_t capacity() const { return capacity_; }

 private:
  const int64_t capacity_;
  std::map<std::string, UniqueFd> all_;
};

}  // namespace sluice::daemon
