#include "client/ctl/render_copies.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "client/ctl/fields.h"
#include "client/ctl/format.h"
#include "client/ctl/table.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;
using Align = Table::Align;

// "2.35 GB/s, 14.9 GiB a step: promised".
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

}  // namespace

std::string RenderCopies(const json& node) {
  Table table({{"COPIES OF"},
               {"RANK", Align::kRight},
               {"WEIGHT", Align::kRight},
               {"GUARANTEED", Align::kRight},
               {"PLAN TO THE GPU"},
               {"PLAN FROM THE GPU"}});
  for (const json& job : node.at("jobs")) {
    for (const json& rank : job.at("ranks")) {
      const double weight = rank.value("weight", 1.0);
      const double guaranteed = rank.value("guaranteed_bytes_per_second", 0.0);
      const json plan = rank.value("plan_copies", json());
      if (weight == 1 && guaranteed <= 0 && plan.is_null()) continue;
      table.Add(
          {Text(job, "name"),
           fmt::format("{}/{}", Number(rank, "rank"),
                       Number(job, "world_size")),
           fmt::format("{:g}", weight),
           guaranteed > 0 ? fmt::format("{:.2f} GB/s", guaranteed / 1e9) : "-",
           plan.is_null() ? "-" : CopiesText(plan, "h2d"),
           plan.is_null() ? "-" : CopiesText(plan, "d2h")});
    }
  }
  return table.empty() ? "" : "\n" + table.Text();
}

}  // namespace sluice::ctl
