#include <fmt/format.h>

#include "client/ctl/format.h"
#include "client/ctl/render.h"
#include "client/ctl/table.h"

namespace sluice::ctl {
namespace {

using Align = Table::Align;

std::string Percent(double part) { return fmt::format("{:.1f} %", 100 * part); }

std::string Segments(const plan::RankPlan& rank) {
  Table table({{"  SEGMENT"},
               {"BUFFERS", Align::kRight},
               {"BASE", Align::kRight},
               {"PEAK", Align::kRight},
               {"AT LEAST", Align::kRight},
               {"PROVED BY"},
               {"FOUND BY"}});
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
  Table table({{"  TENSOR CLASS"},
               {"KEPT", Align::kRight},
               {"SWAPPED", Align::kRight},
               {"RECOMPUTED", Align::kRight}});
  for (const plan::ClassPlan& each : rank.classes) {
    table.Add({"  " + each.name, Percent(each.keep), Percent(each.swap),
               Percent(each.recompute)});
  }
  return table.empty() ? "" : table.Text();
}

}  // namespace

std::string RenderPlan(const plan::NodePlan& plan) {
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
        Size(rank.transient_peak.count()), Size(rank.host_bytes.count()));
    text += Classes(rank) + Segments(rank);
  }
  return text;
}

}  // namespace sluice::ctl
