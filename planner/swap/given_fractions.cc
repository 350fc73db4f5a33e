#include <algorithm>
#include <cmath>
#include <map>

#include "planner/swap/rank_fractions.h"

namespace sluice::planner {
namespace {

// Rounds up, but ignores rounding errors of up to 1e-3 bytes.
Bytes Whole(double bytes) {
  return Bytes(static_cast<int64_t>(std::ceil(bytes - 1e-3)));
}

// Returns the bytes of the fraction `part` (keep, swap, ...) in moving layers.
double SumOf(const plan::RankProfile& profile, const Fractions& fractions,
             double plan::TokenFractions::*part) {
  std::map<std::string, double> layer;  // bytes of one layer, by kind
  for (size_t i = 0; i < profile.classes.size(); ++i) {
    const plan::SkeletalClass& c = profile.classes[i];
    layer[c.kind] += fractions[i].*part * AsDouble(c.bytes_per_layer);
  }
  double sum = 0;
  for (const plan::LayerKind& kind : profile.kinds) {
    const auto moving = static_cast<double>(kind.layers - kind.resident_layers);
    sum += moving * layer[kind.name];
  }
  return sum;
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

Bytes HostBytesOf(const plan::RankProfile& profile,
                  const Fractions& fractions) {
  return Whole(SumOf(profile, fractions, &plan::TokenFractions::swap) +
               AsDouble(profile.host_fixed));
}

Bytes KeptBytesOf(const plan::RankProfile& profile,
                  const Fractions& fractions) {
  return Whole(SumOf(profile, fractions, &plan::TokenFractions::keep));
}

bool HidesNothing(const plan::RankProfile& p, size_t kind) {
  const plan::LayerKind& k = p.kinds[kind];
  double copied = 0;
  for (const plan::SkeletalClass& c : p.classes) {
    if (c.kind == k.name && !c.traffic_in_fixed) {
      copied += AsDouble(c.bytes_per_layer);
    }
  }
  const Bytes forward = k.forward_d2h_fixed + k.forward_h2d_fixed;
  const Bytes backward = k.backward_d2h_fixed + k.backward_h2d_fixed;
  return (k.forward_layer_seconds <= 0 && (copied > 0 || forward > Bytes(0))) ||
         (k.backward_layer_seconds <= 0 && (copied > 0 || backward > Bytes(0)));
}

}  // namespace sluice::planner
