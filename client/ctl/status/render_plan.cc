#include <fmt/format.h>

#include <string>
#include <vector>

#include "client/ctl/status/render.h"
#include "client/ctl/text/format.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

std::string PlanPercent(double part) {
  return fmt::format("{:.1f} %", 100 * part);
}

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
               PlanPercent(each.fractions.keep),
               PlanPercent(each.fractions.swap),
               PlanPercent(each.fractions.recompute)});
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
    const double gap =
        placement.lower_bound > Bytes(0)
            ? static_cast<double>(placement.peak.count()) /
                      static_cast<double>(placement.lower_bound.count()) -
                  1
            : 0;
    return fmt::format("not proved: at most {} above the least",
                       PlanPercent(gap));
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

bool SameText(const plan::RankPlan& a, const plan::RankPlan& b) {
  return RankReason(a) + Proofs(a) == RankReason(b) + Proofs(b);
}

// Describes equal ranks once.
std::string Reasons(const plan::NodePlan& plan) {
  std::string text;
  std::vector<bool> told(plan.ranks.size(), false);
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    if (told[r]) continue;
    std::string names;
    for (size_t other = r; other < plan.ranks.size(); ++other) {
      if (told[other] || !SameText(plan.ranks[r], plan.ranks[other])) continue;
      told[other] = true;
      names += fmt::format("{}{}", names.empty() ? "" : ", ",
                           plan.ranks[other].rank.value());
    }
    text += fmt::format("\nwhy, rank {}\n", names) + RankReason(plan.ranks[r]) +
            Proofs(plan.ranks[r]);
  }
  return text;
}

std::string LimitAmount(const plan::PlanLimit& limit, double value) {
  return limit.unit == "bytes" ? Size(static_cast<int64_t>(value))
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

// A changed plan has only fractions.
std::string Peak(const plan::RankPlan& rank) {
  return rank.segments.empty() ? "-" : Size(rank.transient_peak.count());
}

std::string Explained(const plan::NodePlan& plan) {
  return fmt::format(
      "{}{}\nunits of work: {} solved for this plan, {} known "
      "before\n",
      Reasons(plan), PlanLimits(plan), plan.units_solved, plan.units_known);
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
        Peak(rank), Size(rank.host_bytes.count()));
    text += Classes(rank) + Segments(rank);
  }
  return explain ? text + Explained(plan) : text;
}

}  // namespace sluice::ctl
