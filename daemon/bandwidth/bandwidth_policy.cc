#include "daemon/bandwidth/bandwidth_policy.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "daemon/bandwidth/due_first.h"
#include "daemon/bandwidth/fair_shares.h"
#include "proto/base/grant_page.h"
#include "proto/base/status.h"

namespace sluice::daemon::bandwidth {

BandwidthPolicy::BandwidthPolicy(Topology topology, BandwidthOptions options)
    : topology_(std::move(topology)),
      options_(options),
      admission_(&topology_, options.promised) {
  SLUICE_CHECK(options.prefetch_first >= 1);
  const int channels = static_cast<int>(topology_.channels().size());
  for (int i = 0; i < channels; ++i) gate_paths_.push_back({i});
}

void BandwidthPolicy::Open(int flow, int link, int direction, double weight,
                           std::optional<int> owner) {
  SLUICE_CHECK(!flows_.contains(flow) && weight > 0);
  const int channel = topology_.channel_of(link, direction);
  Flow& made = flows_[flow];
  made.direction = direction;
  made.weight = weight;
  made.gate = admission_.gate_of(channel);
  made.path = topology_.PathOf(channel);
  made.leader = {owner.value_or(-1 - flow), channel};
  double narrowest = kUnlimited;
  for (const int each : made.path) {
    narrowest = std::min(narrowest, topology_.channels()[each].capacity);
  }
  made.most_lead = narrowest * absl::ToDoubleSeconds(options_.ahead);
}

void BandwidthPolicy::Close(int flow) {
  EndPromise(flow);
  flows_.erase(flow);
}

void BandwidthPolicy::EndPromise(int flow) {
  Flow& who = flows_.at(flow);
  if (const auto demand = std::exchange(who.demand, std::nullopt)) {
    admission_.Leave(*demand);
    flow_of_demand_.erase(*demand);
    demands_.erase(*demand);
  }
  who.binding = false;
  who.server = Server();
  who.ahead = 0;
}

void BandwidthPolicy::Reweigh(int flow, double weight) {
  SLUICE_CHECK(weight > 0);
  flows_.at(flow).weight = weight;
}

absl::Status BandwidthPolicy::Promise(int flow, const Demand& demand,
                                      absl::Time now) {
  Flow& to = flows_.at(flow);
  SLUICE_CHECK(!to.demand);
  BindWhereIdle(now);  // what left there may be promised again
  const int number = next_demand_;
  SLUICE_RETURN_IF_ERROR(admission_.Admit(number, to.path.front(), demand));
  ++next_demand_;
  to.demand = number;
  demands_[number] = demand;
  flow_of_demand_[number] = flow;
  BindIfIdle(to.gate, now);
  return absl::OkStatus();
}

void BandwidthPolicy::BindWhereIdle(absl::Time now) {
  for (const int gate : admission_.gates()) BindIfIdle(gate, now);
}

void BandwidthPolicy::BindIfIdle(int gate, absl::Time now) {
  if (!admission_.changing(gate)) return;
  for (auto& [id, flow] : flows_) {
    if (flow.gate != gate) continue;
    flow.server.Release(now);
    if (flow.server.released() > 0) return;
  }
  for (const int number : admission_.Idle(gate)) {
    Flow& flow = flows_.at(flow_of_demand_.at(number));
    flow.server.Promise(demands_.at(number), now);
    flow.binding = true;
  }
}

void BandwidthPolicy::Ask(int flow, double bytes, absl::Time now,
                          absl::Time needed_by) {
  Flow& who = flows_.at(flow);
  BindIfIdle(who.gate, now);
  who.server.Ask(bytes, now, needed_by);
  who.server.Release(now);
}

void BandwidthPolicy::AskInAll(int flow, double bytes, absl::Time now) {
  Server& server = flows_.at(flow).server;
  const double more = bytes - server.released() - server.excess();
  if (more > 0) {
    Ask(flow, more, now);
  } else {
    server.Withdraw(-more);
  }
}

void BandwidthPolicy::Need(int flow, double bytes, absl::Time due) {
  Flow& who = flows_.at(flow);
  who.needed = bytes;
  who.due = due;
}

std::vector<BandwidthPolicy::Due> BandwidthPolicy::AllDue() {
  std::vector<Due> due;
  for (auto& [id, flow] : flows_) {
    for (const Server::Piece& piece : flow.server.pieces()) {
      due.push_back({piece.deadline, &flow, id, piece.bytes});
    }
  }
  std::stable_sort(due.begin(), due.end(), [](const Due& a, const Due& b) {
    return a.Rank() < b.Rank();
  });
  return due;
}

template <typename PathOf>
void BandwidthPolicy::ByDeadline(std::vector<Due>& due,
                                 std::vector<double>& room, const PathOf& path,
                                 std::map<int, double>& given) {
  for (auto first = due.begin(); first != due.end();) {
    const auto last = std::find_if(first, due.end(), [&](const Due& other) {
      return other.Rank() != first->Rank();
    });
    std::vector<Want> wants;
    for (auto it = first; it != last; ++it) {
      wants.push_back({&path(*it->flow), it->bytes, it->flow->weight});
    }
    for (const double share : ShareFairly(wants, room).bytes) {
      given[first->id] += share;
      first->bytes -= share;
      ++first;
    }
  }
}

void BandwidthPolicy::SharePromised(absl::Duration window,
                                    std::vector<double>& room,
                                    std::map<int, double>& given) {
  std::vector<Due> due = AllDue();
  if (due.empty()) return;
  std::vector<double> supply(room.size(), 0);
  for (const int gate : admission_.gates()) {
    supply[gate] = admission_.supply_of(gate) * absl::ToDoubleSeconds(window);
  }
  ByDeadline(
      due, supply,
      [this](const Flow& flow) -> const auto& {
        return gate_paths_[flow.gate];
      },
      given);
  for (const auto& [id, bytes] : given) {
    for (const int channel : flows_.at(id).path) {
      room[channel] = std::max(0.0, room[channel] - bytes);
    }
  }
  ByDeadline(
      due, room, [](const Flow& flow) -> const auto& { return flow.path; },
      given);
  for (const auto& [id, bytes] : given) {
    flows_.at(id).server.TakeReleased(bytes);
  }
}

double BandwidthPolicy::LentWeight(const Flow& flow) const {
  return flow.weight * (flow.direction == kH2d ? options_.prefetch_first : 1);
}

void BandwidthPolicy::LendToLate(absl::Time now, absl::Duration window,
                                 std::vector<double>& room,
                                 std::map<int, double>& given) {
  const bool any = std::ranges::any_of(flows_, [](const auto& each) {
    return each.second.needed > 0 && each.second.server.excess() > 0;
  });
  if (!any) return;
  std::map<std::pair<int, int>, double> leads;
  for (const auto& [id, flow] : flows_) leads[flow.leader] += flow.lead;
  std::vector<LentCopy> copies;
  std::vector<std::pair<int, Flow*>> who;
  for (auto& [id, flow] : flows_) {
    if (flow.server.excess() <= 0) continue;
    LentCopy copy = {&flow.path, flow.server.excess(), LentWeight(flow)};
    if (flow.needed > 0) {
      const auto promised = given.find(id);
      copy.needed =
          flow.needed - (promised != given.end() ? promised->second : 0);
      copy.due = absl::ToDoubleSeconds(flow.due - now);
      copy.may = flow.most_lead - leads[flow.leader];
      if (flow.binding) {
        const Demand& demand = demands_.at(*flow.demand);
        copy.promised_rate = static_cast<double>(demand.bytes.count()) /
                             absl::ToDoubleSeconds(demand.period);
      }
    }
    copies.push_back(copy);
    who.emplace_back(id, &flow);
  }
  const std::vector<double> shares =
      ShareToLate(copies, absl::ToDoubleSeconds(window), room);
  for (size_t i = 0; i < who.size(); ++i) {
    who[i].second->server.TakeExcess(shares[i]);
    who[i].second->lead += shares[i];
    given[who[i].first] += shares[i];
  }
}

void BandwidthPolicy::Lend(absl::Time now, absl::Duration window,
                           std::vector<double>& room,
                           std::map<int, double>& given) {
  for (const auto& [id, bytes] : given) flows_.at(id).ahead += bytes;
  LendToLate(now, window, room, given);
  std::vector<Want> wants;
  std::vector<std::pair<int, Flow*>> who;
  for (auto& [id, flow] : flows_) {
    const double excess = flow.server.excess();
    if (excess <= 0) continue;
    wants.push_back(
        {&flow.path, excess, LentWeight(flow), flow.ahead + flow.lead});
    who.emplace_back(id, &flow);
  }
  const FairShares shares = ShareFairly(wants, room);
  for (size_t i = 0; i < who.size(); ++i) {
    who[i].second->server.TakeExcess(shares.bytes[i]);
    given[who[i].first] += shares.bytes[i];
  }
  Remember(shares.full_at);
}

void BandwidthPolicy::Remember(const std::vector<double>& full_at) {
  for (auto& [id, flow] : flows_) {
    const double before = flow.ahead + flow.lead;
    if (before <= 0) continue;
    double level = kUnlimited;
    for (const int channel : flow.path) {
      level = std::min(level, full_at[channel]);
    }
    const double still = std::max(0.0, before - level * LentWeight(flow));
    const double most =
        flow.binding
            ? static_cast<double>(demands_.at(*flow.demand).bytes.count())
            : 0;
    flow.lead = std::min(flow.lead, still);
    flow.ahead = std::min(still - flow.lead, most);
  }
}

std::map<int, double> BandwidthPolicy::Share(absl::Time now,
                                             absl::Duration window) {
  BindWhereIdle(now);
  for (auto& [id, flow] : flows_) flow.server.Release(now);
  std::vector<double> room;
  for (const Channel& channel : topology_.channels()) {
    room.push_back(channel.capacity * absl::ToDoubleSeconds(window));
  }
  std::map<int, double> given;
  SharePromised(window, room, given);
  Lend(now, window, room, given);
  std::erase_if(given, [](const auto& entry) { return entry.second <= 0; });
  return given;
}

absl::Time BandwidthPolicy::next_return() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, flow] : flows_) {
    next = std::min(next, flow.server.next_return());
  }
  return next;
}

absl::Time BandwidthPolicy::next_deadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, flow] : flows_) {
    if (flow.server.pieces().empty()) continue;
    next = std::min(next, flow.server.pieces().front().deadline);
  }
  return next;
}

void BandwidthPolicy::CheckInvariants() const {
  admission_.CheckInvariants();
  for (const auto& [id, flow] : flows_) {
    flow.server.CheckInvariants();
    SLUICE_CHECK(!flow.binding || flow.demand);
    SLUICE_CHECK(flow.binding || flow.server.released() == 0);
    SLUICE_CHECK(flow.lead >= 0 && flow.lead <= flow.most_lead + 1);
  }
}

}  // namespace sluice::daemon::bandwidth
