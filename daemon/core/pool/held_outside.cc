#include "daemon/core/pool/held_outside.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/base/find.h"
#include "proto/base/simulated.h"

namespace sluice::daemon {

OutsideAnswers::OutsideAnswers(const NodeConfig& node, bool exact)
    : exact_(exact) {
  for (const GpuConfig& gpu : node.gpus) {
    places_[{PoolKind::kGpu, gpu.index.value()}] = {gpu.pool, gpu.spare};
  }
  for (const HostConfig& host : node.hosts) {
    places_[{PoolKind::kHost, host.numa.value()}] = {host.pool, host.spare};
  }
}

HeldOutside OutsideAnswers::Add(const Answer& answer) {
  HeldOutside said;
  said.at = answer.at;
  const bool is_first = last_.at == absl::InfinitePast();
  said.since = exact_ || is_first ? answer.at : last_.at;
  for (const auto& [pool, place] : places_) {
    const absl::StatusOr<Bytes> held = FindOr(answer.held, pool, Bytes(0));
    if (!held.ok()) {  // the last answer stays in force
      said.silent[pool] = FindOr(last_.silent, pool, last_.at);
      const auto keep = [pool = pool](const auto& from, auto& to) {
        if (const auto* bytes = FindOrNull(from, pool)) to[pool] = *bytes;
      };
      keep(last_.pools, said.pools);
      keep(last_.beside, said.beside);
      continue;
    }
    Bytes lasting = *held;  // what was in the previous answer too
    const auto [before, is_new] = before_.try_emplace(pool, *held);
    const Bytes then = std::exchange(before->second, *held);
    if (!exact_ && !is_new) lasting = std::min(lasting, then);
    if (!exact_ && pool.kind == PoolKind::kGpu) said.beside[pool] = lasting;
    const Bytes beyond = std::min(lasting - place.spare, place.total);
    if (beyond > Bytes(0)) said.pools[pool] = beyond;
  }
  last_ = said;
  return said;
}

HeldOutside Follow(const HeldOutside& before, HeldOutside said,
                   const std::set<PoolId>& with_ranks) {
  said.before_ranks = before.before_ranks;
  for (const auto& [pool, beside] : said.beside) {
    if (said.silent.contains(pool)) continue;
    if (!with_ranks.contains(pool)) {
      said.before_ranks[pool] = beside;
    } else if (Bytes* known = FindOrNull(said.before_ranks, pool)) {
      *known = std::min(*known, beside);
    }
  }
  said.told = before.told;
  std::erase_if(said.told,
                [&](const auto& each) { return each.second.at <= said.since; });
  return said;
}

Bytes OutsideOf(const HeldOutside& held, PoolId pool, Bytes spare) {
  const Bytes said = FindOr(held.pools, pool);
  const HeldOutside::Told* told = FindOrNull(held.told, pool);
  return told != nullptr ? std::max(said, told->beside - spare) : said;
}

std::optional<Bytes> OfRanks(const HeldOutside& held, PoolId gpu,
                             Bytes beside) {
  const Bytes* before = FindOrNull(held.before_ranks, gpu);
  if (before == nullptr) return std::nullopt;
  return std::max(beside - *before, Bytes(0));
}

std::string_view OutsideHolders(std::string_view driver) {
  return IsSimulated(driver)
             ? "processes without a session, such as ranks of a daemon that "
               "was killed"
             : "contexts and buffers of libraries, or processes without a "
               "session";
}

std::string OutsideText(Bytes held, std::string_view holders) {
  return fmt::format("{} are held outside leases, by {}: free when they end",
                     FormatBytes(held), holders);
}

}  // namespace sluice::daemon
