// The descriptors that the keeper holds for the daemon, by name.
//
// Thread safety: none needed; the keeper has one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/keeper/notify_receiver.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class KeptDescriptors {
 public:
  explicit KeptDescriptors(int64_t capacity) : capacity_(capacity) {}

  // Executes the daemon's message; `fds` came with it. A put replaces a kept
  // descriptor with the same name. Descriptors that are not kept are closed,
  // which is also the answer to a barrier. InvalidArgument: a put does not have
  // exactly one descriptor. ResourceExhausted: no more can be kept.
  absl::Status Apply(const Notification& said, std::vector<UniqueFd> fds);

  const std::map<std::string, UniqueFd>& all() const { return all_; }
  int64_t capacity() const { return capacity_; }

 private:
  const int64_t capacity_;
  std::map<std::string, UniqueFd> all_;
};

}  // namespace sluice::daemon
