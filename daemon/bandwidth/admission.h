// Which demands can be promised: every deadline met, on every link of the path.
//
// Earliest deadline first is exact on one link and wrong on a tree: where a
// switch is wider than one GPU's link, a transfer that needs its GPU's link all
// the time is late when two with earlier deadlines fill the switch for a while
// (Dhall and Liu 1978). So the channels are cut into *domains*. A channel with
// one above it that carries no more is never the narrow one and belongs to that
// one's domain; inside a domain one channel, its *gate*, is the only limit,
// and earliest deadline first over it is exact. To the domain above, a domain
// is one server of constant rate: the least rate at which its own demands meet
// their deadlines (demand.h), and the rates of the domains below it.
//
// Demands come and go at *idle instants* only, when nothing that was promised
// is outstanding in their domain: what was promised before could otherwise have
// been delayed in favour of a demand that is gone, or be by one that is new
// (the idle time protocol of Tindell and Alonso 1996). A demand that leaves is
// counted, and one that comes waits, until then. Idle instants come, because a
// domain is given 1 / `promised` times its least rate.
//
// Thread safety: none needed; pure.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "daemon/bandwidth/demand.h"
#include "daemon/bandwidth/topology.h"

namespace sluice::daemon::bandwidth {

class Admission {
 public:
  // `topology` outlives this. `promised`: above 0, at most 1; the part of each
  // channel that demands may fill, so that those without a promise never stop.
  Admission(const Topology* topology, double promised);

  // Admits demand `id` (never used before) of `channel` whole, or
  // ResourceExhausted: asked, what is promised there, limit. InvalidArgument:
  // CheckDemand.
  absl::Status Admit(int id, int channel, const Demand& demand);
  // Its demand counts until the domain is idle.
  void Leave(int id);
  // Whether demands of the domain wait for an idle instant, to come or to go.
  bool changing(int gate) const { return domains_.at(gate).changing; }
  bool changing_anywhere() const;
  // How often demands that left have been taken off: until then what was
  // refused would be again.
  uint64_t given_back() const { return given_back_; }
  // The domain of `gate` is idle. Returns the demands that bind from now on.
  std::vector<int> Idle(int gate);

  // The gate of the domain that `channel` is in.
  int gate_of(int channel) const { return gates_[channel]; }
  // What the domain's own demands are given, in bytes per second.
  double supply_of(int gate) const { return domains_.at(gate).supply; }
  // The gates of all domains.
  std::vector<int> gates() const;

  // No channel has promised more than it carries.
  void CheckInvariants() const;

 private:
  enum class State { kWaiting, kBinding, kLeaving };
  struct Member {
    Demand demand;
    State state = State::kWaiting;
  };
  struct Domain {
    std::optional<int> above;  // the gate of the domain above
    std::map<int, Member> members;
    bool changing = false;
    double supply = 0;  // for its own members
    double below = 0;   // for the domains below it
  };
  int GateOf(int channel) const;
  double SupplyFor(const Domain& domain, const Demand* another) const;
  // The first gate from `gate` up that does not carry `more` beside what is
  // promised.
  std::optional<int> Overfull(int gate, double more) const;
  void SetSupply(int gate, double supply);

  const Topology* const topology_;
  const double promised_;
  std::vector<int> gates_;         // by channel
  std::map<int, Domain> domains_;  // by gate
  std::map<int, int> gate_of_id_;  // those who did not leave
  uint64_t given_back_ = 0;
};

}  // namespace sluice::daemon::bandwidth
