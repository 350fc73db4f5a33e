#include "daemon/core/outside/held_outside.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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
}

HeldOutside OutsideAnswers::Add(const Answer& answer) {
  HeldOutside said;
  said.at = answer.at;
  for (const auto& [pool, place] : places_) {
    const auto found = answer.held.find(pool);
    if (found != answer.held.end() && !found->second.ok()) {
      StaysAsItWas(pool, said);
      continue;
    }
    const Bytes lasting =
        Lasting(pool, found != answer.held.end() ? *found->second : Bytes(0));
    const Bytes beyond = std::min(lasting - place.spare, place.total);
    if (beyond > Bytes(0)) said.pools[pool] = beyond;
  }
  last_ = said;
  return said;
}

std::string_view OutsideHolders(std::string_view driver) {
  return driver == "cuda"
             ? "contexts and buffers of libraries, or processes without a "
               "session"
             : "processes without a session, such as ranks of a daemon that "
               "was killed";
}

std::string OutsideText(Bytes held, std::string_view holders) {
  return fmt::format("{} are held outside leases, by {}: free when they end",
                     FormatBytes(held), holders);
}

}  // namespace sluice::daemon
