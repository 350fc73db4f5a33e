#include "client/torch/run/plan_change.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "proto/base/shortage.h"
#include "proto/plan/validate.h"

namespace sluice::runtime {

const plan::RankPlan* SavedPlan::own() const {
  return plan::PartOf(plan, profile);
}

std::vector<bool> WhoTakes(const std::vector<PlanOffer>& offers) {
  std::map<int64_t, uint64_t> of_node;  // 0: no plan, or ranks differ
  for (const PlanOffer& offer : offers) {
    const auto [first, is_new] = of_node.try_emplace(offer.node, offer.plan);
    if (!is_new && first->second != offer.plan) first->second = 0;
  }
  std::vector<bool> takes;
  for (const PlanOffer& offer : offers) {
    takes.push_back(of_node.at(offer.node) != 0);
  }
  return takes;
}

absl::Status RoomToRecord(const RecordingMemory& m) {
  const Bytes needed = m.used + m.rings + m.kept + m.transient;
  if (needed <= m.lease) return absl::OkStatus();
  return ShortOf(
      Shortage::kGpuMemory,
      fmt::format(
          "its fractions need {} of GPU memory for rings and kept rows beside "
          "{} in use and {} of transient buffers, the rank has {}",
          FormatBytes(m.rings + m.kept), FormatBytes(m.used),
          FormatBytes(m.transient), FormatBytes(m.lease)));
}

}  // namespace sluice::runtime
