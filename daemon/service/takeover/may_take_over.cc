#include "daemon/service/takeover/may_take_over.h"

#include <fmt/format.h>

#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "daemon/service/takeover/handover.h"
#include "daemon/service/takeover/read_saved.h"
#include "proto/base/status.h"

namespace sluice::daemon {

absl::Status MayTakeOver(const std::map<std::string, UniqueFd>& left,
                         const NodeConfig& node) {
  const auto state = left.find(Handover::kState);
  if (state == left.end()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const auto file, OpenSaved(state->second.get()));
  if (file == nullptr) return absl::OkStatus();
  const Core fresh(node, absl::UnixEpoch());
  SLUICE_ASSIGN_OR_RETURN(const CoreState saved,
                          ReadSaved(file->TakeContents(), fresh));
  std::set<std::string> kept;
  for (const auto& [name, fd] : left) kept.insert(name);
  return CheckLeft(saved, kept);
}

absl::Status CheckLeft(const CoreState& saved,
                       const std::set<std::string>& kept) {
  for (const auto& [pool, extents] : saved.ledger.pools) {
    for (const auto& [id, extent] : extents.extents) {
      if (extent.state == Pool::State::kMaking ||
          kept.contains(Handover::NameOf(id))) {
        continue;
      }
      return absl::FailedPreconditionError(
          fmt::format("extent {} of {} was not kept", id.value(), Name(pool)));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::daemon
