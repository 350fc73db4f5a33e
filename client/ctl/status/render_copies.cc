#include "client/ctl/status/render_copies.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "client/ctl/text/fields.h"
#include "client/ctl/text/format.h"
#include "client/ctl/text/table.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;

// Formats "2.35 GB/s, 14.9 GiB a step: promised".
std::string CopiesText(const json& copies, const std::string& direction) {
  const auto of = [&](const std::string& key) {
    return copies.at(key).get<double>();
  };
  const double rate = of(direction + "_bytes_per_second");
  if (rate <= 0) return "-";
  return fmt::format(
      "{:.2f} GB/s, {} a step: {}", rate / 1e9,
      Size(copies.value(direction + "_bytes_per_step", int64_t{-1})),
      of("promised_" + direction + "_bytes_per_second") > 0 ? "promised"
                                                            : "fair share");
}

// Formats "12 to, 3 from: 0.41 s".
std::string LateText(const json& late) {
  if (late.is_null()) return "-";  // the daemon is older
  const auto h2d = late.at("h2d_copies").get<uint64_t>();
  const auto d2h = late.at("d2h_copies").get<uint64_t>();
  if (h2d + d2h == 0) return "-";
  return fmt::format("{} to, {} from: {}", h2d, d2h,
                     Span(late.at("h2d_seconds").get<double>() +
                          late.at("d2h_seconds").get<double>()));
}

}  // namespace

std::string RenderCopies(const json& node) {
  Table table({"COPIES OF", ">RANK", ">WEIGHT", "LATE", "PLAN TO THE GPU",
               "PLAN FROM THE GPU"});
  for (const json& job : node.at("jobs")) {
    for (const json& rank : job.at("ranks")) {
      const double weight = rank.value("weight", 1.0);
      const json plan = rank.value("plan_copies", json());
      const std::string late = LateText(rank.value("late", json()));
      if (weight == 1 && plan.is_null() && late == "-") continue;
      table.Add({Text(job, "name"),
                 fmt::format("{}/{}", Number(rank, "rank"),
                             Number(job, "world_size")),
                 fmt::format("{:g}", weight), late,
                 plan.is_null() ? "-" : CopiesText(plan, "h2d"),
                 plan.is_null() ? "-" : CopiesText(plan, "d2h")});
    }
  }
  return table.empty() ? "" : "\n" + table.Text(kTerminalColumns, 2);
}

}  // namespace sluice::ctl
