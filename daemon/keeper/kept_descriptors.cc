#include "daemon/keeper/kept_descriptors.h"

#include <fmt/format.h>

#include <utility>

namespace sluice::daemon {

absl::Status KeptDescriptors::Apply(const Notification& said,
                                    std::vector<UniqueFd> fds) {
  if (said.kind == Notification::Kind::kRemove) all_.erase(said.name);
  if (said.kind != Notification::Kind::kPut) return absl::OkStatus();
  if (fds.size() != 1) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' came with {} descriptors, it must be one", said.name,
                    fds.size()));
  }
  if (static_cast<int64_t>(all_.size()) >= capacity_ &&
      !all_.contains(said.name)) {
    return absl::ResourceExhaustedError(
        fmt::format("'{}' is one more than the {} of --max-descriptors",
                    said.name, capacity_));
  }
  all_.insert_or_assign(said.name, std::move(fds.front()));
  return absl::OkStatus();
}

}  // namespace sluice::daemon
