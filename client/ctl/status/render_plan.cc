#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "client/ctl/status/render.h"
#include "client/ctl/text/format.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

std::string Segments(const plan::RankPlan& rank) {
  Table table({"  SEGMENT", ">BUFFERS", ">BASE", ">PEAK", ">AT LEAST",
               "PROVED BY", "FOUND BY"});
  for (const plan::SegmentPlan& segment : rank.segments) {
    const plan::Placement& placement = segment.placement;
    table.Add({"  " + segment.name, fmt::format("{}", placement.offsets.size()),
               Size(segment.base.count()), Size(placement.peak.count()),
               Size(placement.lower_bound.count()), placement.proved_by,
               placement.method});
  }
  return table.empty() ? "" : table.Text();
}

std::string Classes(const plan::RankPlan& rank) {
  Table table({"  TENSOR CLASS", ">KEPT", ">SWAPPED", ">RECOMPUTED"});
  for (const plan::ClassPlan& each : rank.classes) {
    table.Add({"  " + plan::FullName(each.kind, each.name),
               Percent(each.fractions.keep), Percent(each.fractions.swap),
               Percent(each.fractions.recompute)});
  }
  return table.empty() ? "" : table.Text();
}

// ---- --explain --------------------------------------------------------------

std::string RankReason(const plan::RankPlan& rank) {
  Table table({"  TENSOR CLASS", "WHY"});
  for (const plan::ClassPlan& each : rank.classes) {
    table.Add({"  " + plan::FullName(each.kind, each.name), each.why});
  }
  return table.empty() ? "" : table.Text();
}

std::string ProofOf(const plan::Placement& placement) {
  if (!placement.optimal()) {
    const double least = placement.lower_bound.count();
    const double gap = least > 0 ? placement.peak.count() / least - 1 : 0;
    return fmt::format("not proved: at most {} above the least", Percent(gap));
  }
  return placement.proved_by == "max_live"
             ? "the least there is: that much is alive at once"
         : placement.proved_by == "search"
             ? "the least there is: a search refuted everything below"
         : placement.proved_by == "cbc"
             ? "the least there is: CBC refuted everything below"
             : "the least there is";
}

std::string Proofs(const plan::RankPlan& rank) {
  Table table({"  SEGMENT", ">PEAK", "PROOF"});
  for (const plan::SegmentPlan& segment : rank.segments) {
    table.Add({"  " + segment.name, Size(segment.placement.peak.count()),
               ProofOf(segment.placement)});
  }
  return table.empty() ? "" : table.Text();
}

// Describes equal ranks once.
std::string Reasons(const plan::NodePlan& plan) {
  std::vector<std::pair<std::string, std::string>> ranks_of;  // reasons, ranks
  for (const plan::RankPlan& rank : plan.ranks) {
    const std::string name = fmt::format("{}", rank.rank.value());
    const std::string why = RankReason(rank) + Proofs(rank);
    const auto same = std::ranges::find(
        ranks_of, why, [](auto& known) { return known.first; });
    if (same == ranks_of.end()) {
      ranks_of.emplace_back(why, name);
    } else {
      same->second += ", " + name;
    }
  }
  std::string text;
  for (const auto& [why, names] : ranks_of) {
    text += fmt::format("\nwhy, rank {}\n{}", names, why);
  }
  return text;
}

std::string LimitAmount(const plan::PlanLimit& limit, double value) {
  return limit.unit == "bytes" ? Size(int64_t(value))
                               : fmt::format("{:.3g} GB/s", value / 1e9);
}

std::string Saves(double seconds) {
  return seconds > 0 ? fmt::format("-{:.3g} s", seconds) : "-";
}

std::string PlanLimits(const plan::NodePlan& plan) {
  Table table(
      {"LIMIT", ">USED", ">OF", "", "ONE MORE", ">STEP", ">RECOMPUTATION"});
  for (const plan::PlanLimit& limit : plan.limits) {
    table.Add({limit.what, LimitAmount(limit, limit.used),
               LimitAmount(limit, limit.capacity), limit.binds ? "full" : "",
               limit.unit == "bytes" ? "GiB" : "GB/s",
               Saves(limit.one_more_step_seconds),
               Saves(limit.one_more_recompute_seconds)});
  }
  return table.empty() ? "" : "\n" + table.Text();
}

}  // namespace

std::string RenderPlan(const plan::NodePlan& plan, bool explain) {
  std::string text =
      fmt::format("plan {}, solved in {}, profile {}\n", plan.id.value(),
                  Span(plan.seconds), Printable(plan.profile_hash));
  if (!plan.infeasible.empty()) {
    return text + "does not fit: " + Printable(plan.infeasible) + "\n";
  }
  for (const plan::RankPlan& rank : plan.ranks) {
    text += fmt::format(
        "\nrank {}: alpha {:.4f} (limited by {}), transient peak {}, host "
        "memory {}\n",
        rank.rank.value(), rank.alpha, Printable(rank.alpha_limited_by),
        // A changed plan has only fractions.
        rank.segments.empty() ? "-" : Size(rank.transient_peak.count()),
        Size(rank.host_bytes.count()));
    text += Classes(rank) + Segments(rank);
  }
  if (!explain) return text;
  return text + Reasons(plan) + PlanLimits(plan) +
         fmt::format(
             "\nunits of work: {} solved for this plan, {} known before\n",
             plan.units_solved, plan.units_known);
}

}  // namespace sluice::ctl
