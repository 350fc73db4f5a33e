#include "daemon/core/planning/demands.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "daemon/bandwidth/topology.h"
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
  void Add(const Principal& user, double rate) {
    promised += rate;
    by_user[user] += rate;
  }
  bool HasRoom(const Principal& user, double rate) const {
    const auto users = static_cast<double>(by_user.size());
    return promised + rate <= capacity &&
           by_user.at(user) + rate <= capacity / users;
  }
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
  std::vector<std::array<Channel, 2>> channels(links.size());
  // The channels that limit each rank, by direction.
  std::vector<std::array<std::vector<Channel*>, 2>> paths(ranks.size());
  for (const int d : {kH2d, kD2h}) {
    for (size_t i = 0; i < links.size(); ++i) {
      channels[i][d].capacity = kPromised * SpeedBothWays(links[i], d);
    }
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const size_t i : LinkPath(links, ranks[rank].link)) {
        if (channels[i][d].capacity <= 0) continue;
        paths[rank][d].push_back(&channels[i][d]);
        channels[i][d].Add(ranks[rank].principal, 0);
      }
    }
  }
  std::map<SessionId, CopyRates> promised;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const LinkUser& rank = ranks[i];
    for (const int d : {kH2d, kD2h}) {
      const double rate = rank.demand[d];
      const bool fits = std::ranges::all_of(paths[i][d], [&](auto* channel) {
        return channel->HasRoom(rank.principal, rate);
      });
      if (rate <= 0 || paths[i][d].empty() || !fits) continue;
      for (Channel* channel : paths[i][d]) channel->Add(rank.principal, rate);
      promised[rank.session][d] = rate;
    }
  }
  return promised;
}

}  // namespace sluice::daemon
