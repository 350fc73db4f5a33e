#include "daemon/core/pool/held_outside.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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

Bytes OutsideAnswers::Lasting(PoolId pool, Bytes held) {
  const auto [before, is_first] = before_.try_emplace(pool, held);
  const Bytes then = std::exchange(before->second, held);
  return exact_ || is_first ? held : std::min(held, then);
}

void OutsideAnswers::StaysAsItWas(PoolId pool, HeldOutside& said) const {
  const auto silent = last_.silent.find(pool);
  said.silent[pool] = silent != last_.silent.end() ? silent->second : last_.at;
  const auto held = last_.pools.find(pool);
  if (held != last_.pools.end()) said.pools.insert(*held);
  const auto beside = last_.beside.find(pool);
  if (beside != last_.beside.end()) said.beside.insert(*beside);
}

HeldOutside OutsideAnswers::Add(const Answer& answer) {
  HeldOutside said;
  said.at = answer.at;
  const bool is_first = last_.at == absl::InfinitePast();
  said.since = exact_ || is_first ? answer.at : last_.at;
  for (const auto& [pool, place] : places_) {
    const auto found = answer.held.find(pool);
    if (found != answer.held.end() && !found->second.ok()) {
      StaysAsItWas(pool, said);
      continue;
    }
    const Bytes lasting =
        Lasting(pool, found != answer.held.end() ? *found->second : Bytes(0));
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
    const auto known = said.before_ranks.find(pool);
    if (!with_ranks.contains(pool)) {
      said.before_ranks[pool] = beside;
    } else if (known != said.before_ranks.end()) {
      known->second = std::min(known->second, beside);
    }
  }
  said.told = before.told;
  std::erase_if(said.told,
                [&](const auto& each) { return each.second.at <= said.since; });
  return said;
}

Bytes OutsideOf(const HeldOutside& held, PoolId pool, Bytes spare) {
  const auto said = held.pools.find(pool);
  const auto told = held.told.find(pool);
  return std::max(
      said != held.pools.end() ? said->second : Bytes(0),
      told != held.told.end() ? told->second.beside - spare : Bytes(0));
}

std::optional<Bytes> OfRanks(const HeldOutside& held, PoolId gpu,
                             Bytes beside) {
  const auto before = held.before_ranks.find(gpu);
  if (before == held.before_ranks.end()) return std::nullopt;
  return std::max(beside - before->second, Bytes(0));
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
