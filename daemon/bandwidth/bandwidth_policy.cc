#include "daemon/bandwidth/bandwidth_policy.h"

#include <algorithm>

#include "daemon/bandwidth/shares.h"
#include "proto/base/status.h"

namespace sluice::daemon::bandwidth {

void BandwidthPolicy::Open(int flow, int link, int direction, double weight,
                           std::optional<int> owner) {
  SLUICE_CHECK(!flows_.contains(flow) && weight > 0);
  const int channel = topology_.channel_of(link, direction);
  Flow& made = flows_[flow];
  made.direction = direction;
  made.weight = weight;
  made.path = topology_.PathOf(channel);
  made.leader = {owner.value_or(-1 - flow), channel};
  double narrowest = kUnlimited;
  for (const int each : made.path) {
    narrowest = std::min(narrowest, topology_.channels()[each].capacity);
  }
  made.most_lead = narrowest * absl::ToDoubleSeconds(kAhead);
}

void BandwidthPolicy::Reweigh(int flow, double weight) {
  SLUICE_CHECK(weight > 0);
  flows_.at(flow).weight = weight;
}

void BandwidthPolicy::Promise(int flow, double rate) {
  Flow& to = flows_.at(flow);
  to.rate = rate;
  to.ahead = std::min(to.ahead, rate * absl::ToDoubleSeconds(kPeriod));
}

void BandwidthPolicy::Need(int flow, double bytes, absl::Time due) {
  Flow& to = flows_.at(flow);
  to.needed = bytes;
  to.due = due;
}

void BandwidthPolicy::KeepFloors(absl::Duration window,
                                 std::vector<double>& room) {
  std::vector<Want> wants;
  std::vector<Flow*> flows;
  for (auto& [id, flow] : flows_) {
    flow.unused = std::min(flow.unused + window, std::max(window, kPeriod));
    if (flow.rate <= 0 || flow.wanted <= 0) continue;
    const double floor = flow.rate * absl::ToDoubleSeconds(flow.unused);
    wants.push_back({&flow.path, std::min(flow.wanted, floor), flow.rate});
    flows.push_back(&flow);
  }
  const FairShares shares = ShareFairly(wants, room);
  for (size_t i = 0; i < flows.size(); ++i) {
    flows[i]->unused -= absl::Seconds(shares.bytes[i] / flows[i]->rate);
    flows[i]->Give(shares.bytes[i]);
  }
}

void BandwidthPolicy::LendToLate(absl::Time now, absl::Duration window,
                                 std::vector<double>& room) {
  const bool any = std::ranges::any_of(flows_, [](const auto& each) {
    return each.second.needed > 0 && each.second.wanted > 0;
  });
  if (!any) return;
  std::map<std::pair<int, int>, double> leads;
  for (const auto& [id, flow] : flows_) leads[flow.leader] += flow.lead;
  std::vector<LentCopy> copies;
  std::vector<Flow*> flows;
  for (auto& [id, flow] : flows_) {
    if (flow.wanted <= 0) continue;
    LentCopy copy = {&flow.path, flow.wanted, flow.lent_weight()};
    if (flow.needed > 0) {
      copy.needed = flow.needed - flow.given;
      copy.due = absl::ToDoubleSeconds(flow.due - now);
      copy.may = flow.most_lead - leads[flow.leader];
      copy.promised_rate = flow.rate;
    }
    copies.push_back(copy);
    flows.push_back(&flow);
  }
  const std::vector<double> shares =
      ShareToLate(copies, absl::ToDoubleSeconds(window), room);
  for (size_t i = 0; i < flows.size(); ++i) {
    flows[i]->lead += shares[i];
    flows[i]->Give(shares[i]);
  }
}

void BandwidthPolicy::Lend(absl::Time now, absl::Duration window,
                           std::vector<double>& room) {
  for (auto& [id, flow] : flows_) flow.ahead += flow.given;
  LendToLate(now, window, room);
  std::vector<Want> wants;
  std::vector<Flow*> flows;
  for (auto& [id, flow] : flows_) {
    if (flow.wanted <= 0) continue;
    wants.push_back(
        {&flow.path, flow.wanted, flow.lent_weight(), flow.ahead + flow.lead});
    flows.push_back(&flow);
  }
  const FairShares shares = ShareFairly(wants, room);
  for (size_t i = 0; i < flows.size(); ++i) flows[i]->Give(shares.bytes[i]);
  // A flow stays ahead by its bytes beyond the level that fair shares reached.
  for (auto& [id, flow] : flows_) {
    const double before = flow.ahead + flow.lead;
    if (before <= 0) continue;
    double level = kUnlimited;
    for (const int channel : flow.path) {
      level = std::min(level, shares.full_at[channel]);
    }
    const double still = std::max(0.0, before - level * flow.lent_weight());
    const double most = flow.rate * absl::ToDoubleSeconds(kPeriod);
    flow.lead = std::min(flow.lead, still);
    flow.ahead = std::min(still - flow.lead, most);
  }
}

std::map<int, double> BandwidthPolicy::Share(absl::Time now,
                                             absl::Duration window) {
  std::vector<double> room;
  for (const Channel& channel : topology_.channels()) {
    room.push_back(channel.capacity * absl::ToDoubleSeconds(window));
  }
  for (auto& [id, flow] : flows_) flow.given = 0;
  KeepFloors(window, room);
  Lend(now, window, room);
  std::map<int, double> given;
  for (const auto& [id, flow] : flows_) {
    if (flow.given > 0) given[id] = flow.given;
  }
  return given;
}

void BandwidthPolicy::CheckInvariants() const {
  for (const auto& [id, flow] : flows_) {
    SLUICE_CHECK(flow.lead >= 0 && flow.lead <= flow.most_lead + 1);
  }
}

}  // namespace sluice::daemon::bandwidth
