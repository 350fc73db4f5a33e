#include "planner/swap/refusals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/swap/given_fractions.h"

namespace sluice::planner {
namespace {

using plan::HostLimit;
using plan::RankProfile;
using plan::SkeletalClass;

std::string Amount(double bytes) {
  const Bytes whole(static_cast<int64_t>(std::ceil(bytes)));
  return fmt::format("{} ({} bytes)", FormatBytes(whole), whole.count());
}

// One line on host memory that is too small for the least that its ranks need;
// empty if they fit.
std::string TooMuchHost(const GivenNode& node, const HostLimit& host) {
  Bytes need;
  double fixed = 0, slope = 0;  // of what a user's alpha decides
  std::optional<double> flag;
  bool asked = false;
  for (const size_t r : host.profiles) {
    const RankProfile& p = node.profiles[r];
    const Bytes least = HostBytesOf(p, node.given_only[r]);
    need += least;
    if (p.alpha < 0) {
      fixed += AsDouble(least);
      for (const SkeletalClass& c : p.classes)
        asked |= c.given.swap.value_or(0) > 0;
      continue;
    }
    flag = std::max(flag.value_or(0), p.alpha);
    RankProfile other = p;
    other.alpha = 0;
    const double at_zero = AsDouble(HostBytesOf(other, GivenOnly(other)));
    fixed += at_zero;
    if (p.alpha > 0) slope += (AsDouble(least) - at_zero) / p.alpha;
  }
  if (need <= host.bytes) return "";
  std::string hint;
  const double largest =
      slope > 0 ? (AsDouble(host.bytes) - fixed) / slope : -1;
  if (flag.value_or(0) > 0 && largest >= 0) {
    hint = fmt::format("the largest alpha that fits is {:.4f}, or ",
                       std::floor(largest * 1e4) / 1e4);
  }
  const std::string what = flag    ? fmt::format("alpha {} needs", *flag)
                           : asked ? "what was asked for needs"
                                   : "alpha 0 (the least) needs";
  const double percent =
      std::floor(100 * AsDouble(host.bytes) / AsDouble(need));
  if (percent >= 1) {
    hint += fmt::format(
        "shorten the sequence to about {:.0f} % of this length, or ", percent);
  }
  return fmt::format(
      "{} {} of host memory for {} rank(s), the {} has {}: {}raise the host "
      "budget",
      what, Amount(AsDouble(need)), host.profiles.size(), host.name,
      Amount(AsDouble(host.bytes)), hint);
}

std::string TooMuchKept(const GivenNode& node, size_t r) {
  const RankProfile& p = node.profiles[r];
  const Bytes kept = KeptBytesOf(p, node.given_only[r]);
  if (p.settled || kept <= node.gpu_room[r]) return "";
  return fmt::format(
      "rank {} is asked to keep {} on its GPU, which has {} left beside the "
      "transient buffers: keep less, take smaller chunks or a larger lease",
      p.rank.value(), Amount(AsDouble(kept)),
      Amount(AsDouble(node.gpu_room[r])));
}

}  // namespace

std::optional<Refusal> RefusalOf(const GivenNode& node) {
  for (const HostLimit& host : node.resources.hosts) {
    std::string why = TooMuchHost(node, host);
    if (!why.empty()) return Refusal{std::move(why), "host_memory"};
  }
  for (size_t r = 0; r < node.profiles.size(); ++r) {
    std::string why = TooMuchKept(node, r);
    if (!why.empty()) return Refusal{std::move(why), "gpu_memory"};
  }
  return std::nullopt;
}

}  // namespace sluice::planner
