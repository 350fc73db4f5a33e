#include "daemon/bandwidth/admission.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/span_text.h"
#include "proto/base/status.h"

namespace sluice::daemon::bandwidth {
namespace {

// Sums of rates are not exact.
constexpr double kRounding = 1 + 1e-9;

}  // namespace

Admission::Admission(const Topology* topology, double promised)
    : topology_(topology), promised_(promised) {
  SLUICE_CHECK(promised > 0 && promised <= 1);
  const int channels = static_cast<int>(topology->channels().size());
  for (int channel = 0; channel < channels; ++channel) {
    gates_.push_back(GateOf(channel));
    Domain& domain = domains_[gates_.back()];
    if (const auto parent = topology->channels()[gates_.back()].parent) {
      domain.above = GateOf(*parent);
    }
  }
}

int Admission::GateOf(int channel) const {
  const std::vector<Channel>& all = topology_->channels();
  for (std::optional<int> at = all[channel].parent; at; at = all[*at].parent) {
    if (all[*at].capacity <= all[channel].capacity) return GateOf(*at);
  }
  return channel;
}

double Admission::SupplyFor(const Domain& domain, const Demand* another) const {
  std::vector<Demand> demands;
  for (const auto& [id, member] : domain.members) {
    demands.push_back(member.demand);
  }
  if (another != nullptr) demands.push_back(*another);
  return demands.empty() ? 0 : LeastRate(demands) / promised_;
}

std::optional<int> Admission::Overfull(int gate, double more) const {
  for (std::optional<int> at = gate; at; at = domains_.at(*at).above) {
    const Domain& domain = domains_.at(*at);
    const double capacity = topology_->channels()[*at].capacity;
    if (domain.supply + domain.below + more > capacity * kRounding) return *at;
  }
  return std::nullopt;
}

void Admission::SetSupply(int gate, double supply) {
  Domain& domain = domains_.at(gate);
  const double more = supply - domain.supply;
  domain.supply = supply;
  for (std::optional<int> at = domain.above; at; at = domains_.at(*at).above) {
    domains_.at(*at).below += more;
  }
}

absl::Status Admission::Admit(int id, int channel, const Demand& demand) {
  SLUICE_RETURN_IF_ERROR(CheckDemand(demand));
  SLUICE_CHECK(!gate_of_id_.contains(id));
  const int gate = gate_of(channel);
  Domain& domain = domains_.at(gate);
  const double supply = SupplyFor(domain, &demand);
  if (const auto full = Overfull(gate, supply - domain.supply)) {
    const Channel& at = topology_->channels()[*full];
    const Domain& there = domains_.at(*full);
    return absl::ResourceExhaustedError(fmt::format(
        "no promise of {} bytes within {}, every {}: {} would need {:.3g} MB/s "
        "more, {:.3g} of at most {:.3g} are promised; ask for less or later, "
        "or copy by a fair share without one",
        demand.bytes.count(), FormatSpan(demand.deadline),
        FormatSpan(demand.period), at.name,
        (supply - domain.supply) * promised_ / 1e6,
        (there.supply + there.below) * promised_ / 1e6,
        at.capacity * promised_ / 1e6));
  }
  domain.members[id] = {demand, State::kWaiting};
  domain.changing = true;
  gate_of_id_[id] = gate;
  SetSupply(gate, supply);
  return absl::OkStatus();
}

void Admission::Leave(int id) {
  const auto found = gate_of_id_.find(id);
  SLUICE_CHECK(found != gate_of_id_.end());
  Domain& domain = domains_.at(found->second);
  domain.members.at(id).state = State::kLeaving;
  domain.changing = true;
  gate_of_id_.erase(found);
}

std::vector<int> Admission::Idle(int gate) {
  Domain& domain = domains_.at(gate);
  std::vector<int> bind;
  bool left = false;
  for (auto it = domain.members.begin(); it != domain.members.end();) {
    if (it->second.state == State::kLeaving) {
      it = domain.members.erase(it);
      left = true;
      continue;
    }
    if (it->second.state == State::kWaiting) {
      it->second.state = State::kBinding;
      bind.push_back(it->first);
    }
    ++it;
  }
  domain.changing = false;
  if (left) {
    SetSupply(gate, SupplyFor(domain, nullptr));
    ++given_back_;
  }
  return bind;
}

bool Admission::changing_anywhere() const {
  return std::any_of(domains_.begin(), domains_.end(),
                     [](const auto& each) { return each.second.changing; });
}

std::vector<int> Admission::gates() const {
  std::vector<int> gates;
  for (const auto& [gate, domain] : domains_) gates.push_back(gate);
  return gates;
}

void Admission::CheckInvariants() const {
  for (const auto& [gate, domain] : domains_) {
    SLUICE_CHECK(!Overfull(gate, 0));
    SLUICE_CHECK(domain.supply >= 0);
    SLUICE_CHECK(!domain.members.empty() || domain.supply == 0);
  }
  for (const auto& [id, gate] : gate_of_id_) {
    SLUICE_CHECK(domains_.at(gate).members.contains(id));
  }
}

}  // namespace sluice::daemon::bandwidth
