#include "planner/swap/given_fractions.h"

#include <algorithm>
#include <cmath>

namespace sluice::planner {
namespace {

double AsDouble(Bytes bytes) { return static_cast<double>(bytes.count()); }

double MovingLayers(const plan::RankProfile& p) {
  return static_cast<double>(p.layers - p.resident_layers);
}

// Up, but for digits.
Bytes Whole(double bytes) {
  return Bytes(static_cast<int64_t>(std::ceil(bytes - 1e-3)));
}

}  // namespace

plan::GivenFractions GivenOf(const plan::RankProfile& profile,
                             const plan::SkeletalClass& skeletal) {
  if (skeletal.must_swap) return {0.0, 1.0};
  plan::GivenFractions given = skeletal.given;
  const bool alpha = profile.alpha >= 0;
  if (!given.keep && (alpha || !skeletal.can_keep)) given.keep = 0;
  if (!given.swap && alpha) {
    given.swap = std::min(profile.alpha, 1 - *given.keep);
  }
  return given;
}

Fractions GivenOnly(const plan::RankProfile& profile) {
  Fractions fractions;
  for (const plan::SkeletalClass& c : profile.classes) {
    const plan::GivenFractions given = GivenOf(profile, c);
    const double keep = given.keep.value_or(0), swap = given.swap.value_or(0);
    fractions.push_back({keep, swap, std::max(0.0, 1 - keep - swap)});
  }
  return fractions;
}

LayerBytes LayerOf(const plan::RankProfile& profile,
                   const Fractions& fractions) {
  LayerBytes sum;
  for (size_t i = 0; i < profile.classes.size(); ++i) {
    const plan::SkeletalClass& c = profile.classes[i];
    const double bytes = AsDouble(c.bytes_per_layer);
    sum.held += fractions[i].swap * bytes;
    sum.kept += fractions[i].keep * bytes;
    if (!c.traffic_in_fixed) sum.copied += fractions[i].swap * bytes;
  }
  return sum;
}

Bytes HostBytesOf(const plan::RankProfile& profile,
                  const Fractions& fractions) {
  return Whole(MovingLayers(profile) * LayerOf(profile, fractions).held +
               AsDouble(profile.host_fixed));
}

Bytes KeptBytesOf(const plan::RankProfile& profile,
                  const Fractions& fractions) {
  return Whole(MovingLayers(profile) * LayerOf(profile, fractions).kept);
}

bool HidesNothing(const plan::RankProfile& p) {
  double copied = 0;
  for (const plan::SkeletalClass& c : p.classes) {
    if (!c.traffic_in_fixed) copied += AsDouble(c.bytes_per_layer);
  }
  const Bytes forward = p.forward_d2h_fixed + p.forward_h2d_fixed;
  const Bytes backward = p.backward_d2h_fixed + p.backward_h2d_fixed;
  return (p.forward_layer_seconds <= 0 && (copied > 0 || forward > Bytes(0))) ||
         (p.backward_layer_seconds <= 0 && (copied > 0 || backward > Bytes(0)));
}

}  // namespace sluice::planner
