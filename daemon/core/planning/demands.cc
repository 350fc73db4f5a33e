#include "daemon/core/planning/demands.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "daemon/core/node/links.h"
#include "daemon/core/planning/replan.h"
#include "proto/base/grant_page.h"

namespace sluice::daemon {
namespace {

double Count(Bytes bytes) { return static_cast<double>(bytes.count()); }

// One direction of one link.
struct Channel {
  double capacity = 0;  // bytes per second that may be promised; 0: not limited
  double promised = 0;
  // Promised rates; every user of the link has a row.
  std::map<Principal, double> by_user;
};

class Channels {
 public:
  Channels(const std::vector<LinkSpeed>& links,
           const std::vector<LinkUser>& ranks)
      : links_(links), channels_(links.size()) {
    for (size_t i = 0; i < links.size(); ++i) {
      for (const int d : {kH2d, kD2h}) {
        channels_[i][d].capacity = kPromised * SpeedBothWays(links[i], d);
      }
    }
    for (const LinkUser& rank : ranks) {
      for (const int d : {kH2d, kD2h}) Add(rank, d, 0);
    }
  }

  // Promises the rate if there is room besides earlier promises. Returns
  // whether it did; false if no link of the rank limits the direction.
  bool Promise(const LinkUser& rank, int direction, double rate) {
    bool limited = false;
    for (const size_t i : LinkPath(links_, rank.link)) {
      const Channel& channel = channels_[i][direction];
      if (channel.capacity <= 0) continue;
      limited = true;
      const double own = channel.by_user.at(rank.principal);
      const auto users = static_cast<double>(channel.by_user.size());
      if (!(channel.promised + rate <= channel.capacity)) return false;
      if (!(own + rate <= channel.capacity / users)) return false;
    }
    if (limited) Add(rank, direction, rate);
    return limited;
  }

 private:
  void Add(const LinkUser& rank, int direction, double rate) {
    for (const size_t i : LinkPath(links_, rank.link)) {
      Channel& channel = channels_[i][direction];
      channel.promised += rate;
      channel.by_user[rank.principal] += rate;
    }
  }

  const std::vector<LinkSpeed>& links_;
  std::vector<std::array<Channel, 2>> channels_;
};

}  // namespace

PlanDemand DemandOf(const plan::RankProfile& profile,
                    const plan::RankPlan& plan) {
  PlanDemand demand;
  for (const plan::LayerKind& kind : profile.kinds) {
    if (kind.layers == 0) continue;
    // Bytes of each moving layer that are offloaded in the forward pass and
    // prefetched in the backward pass.
    double swapped = 0;
    for (const plan::SkeletalClass& each : profile.classes) {
      if (each.kind != kind.name || each.traffic_in_fixed) continue;
      const plan::ClassPlan* chosen = FindClass(plan, each.kind, each.name);
      const double swap = each.must_swap      ? 1
                          : chosen != nullptr ? chosen->fractions.swap
                                              : 0;
      swapped += swap * Count(each.bytes_per_layer);
    }
    if (kind.moving_layers() <= 0) swapped = 0;
    const auto layers = static_cast<double>(kind.layers);
    const auto moving = static_cast<double>(kind.moving_layers());
    const auto need = [&](int direction, Bytes fixed, double own,
                          double seconds) {
      // A pass that takes no time copies nothing.
      if (seconds <= 0) return;
      double& rate = demand.rates[direction];
      rate = std::max(rate, (Count(fixed) + own) / seconds);
      demand.step_bytes[direction] +=
          Bytes(std::llround(layers * Count(fixed) + moving * own));
    };
    need(kD2h, kind.forward_d2h_fixed, swapped, kind.forward_layer_seconds);
    need(kH2d, kind.forward_h2d_fixed, 0, kind.forward_layer_seconds);
    need(kD2h, kind.backward_d2h_fixed, 0, kind.backward_layer_seconds);
    need(kH2d, kind.backward_h2d_fixed, swapped, kind.backward_layer_seconds);
  }
  return demand;
}

std::map<SessionId, CopyRates> PromiseDemands(
    const std::vector<LinkSpeed>& links, const std::vector<LinkUser>& ranks) {
  Channels channels(links, ranks);
  std::map<SessionId, CopyRates> promised;
  for (const LinkUser& rank : ranks) {
    for (const int d : {kH2d, kD2h}) {
      const double rate = rank.demand[d];
      if (rate > 0 && channels.Promise(rank, d, rate)) {
        promised[rank.session][d] = rate;
      }
    }
  }
  return promised;
}

}  // namespace sluice::daemon
