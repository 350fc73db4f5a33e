// sluicectl plan validate: compares the cost model with the papers' tables.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"
#include "client/ctl/desk/plan_commands.h"
#include "client/ctl/text/format.h"
#include "client/ctl/text/output.h"
#include "planner/train/validate.h"

namespace sluice::ctl {
namespace {

using planner::train::TokensText;
using planner::train::ValidatedCell;
using planner::train::ValidatedLength;
using planner::train::ValidatedRow;
using planner::train::Validation;

std::string Strategy(const ValidatedCell& cell) {
  const auto& s = cell.used;
  std::string text = cell.searched ? "searched:" : "";
  const std::pair<const char*, int64_t> degrees[] = {
      {"TP", s.tp}, {"CP", s.cp}, {"SP", s.sp}, {"DP", s.dp}, {"PP", s.pp}};
  for (const auto& [name, degree] : degrees) {
    if (degree > 1) {
      text += fmt::format("{}{} {}", text.empty() ? "" : " ", name, degree);
    }
  }
  return text;
}

std::string CellTable(const Validation& validation) {
  Table table({"model", ">GPUs", "method", ">tokens", ">published", ">ours",
               ">difference", "strategy", ""});
  for (const ValidatedCell& cell : validation.cells) {
    const auto difference = cell.difference();
    table.Add({cell.model, fmt::format("{}", cell.gpus), cell.label,
               TokensText(cell.seq_len),
               cell.mfu_percent ? fmt::format("{:.2f}", *cell.mfu_percent)
                                : "no memory",
               cell.fits ? fmt::format("{:.2f}", 100 * cell.mfu) : "no memory",
               difference ? fmt::format("{:+.2f}", *difference) : "",
               Strategy(cell), cell.right() ? "" : "fits: wrong"});
  }
  return table.Text();
}

std::string LengthTable(const Validation& validation) {
  Table table({"model", "hardware", ">GPUs", ">published", ">ours", ">rounded",
               ">doublings", "stopped by"});
  for (const ValidatedLength& row : validation.lengths) {
    table.Add({row.model, row.hardware, fmt::format("{}", row.gpus),
               TokensText(row.tokens) + (row.or_more ? "+" : ""),
               TokensText(row.ours), TokensText(row.rounded),
               fmt::format("{:+d}", row.doublings()), row.stopped_by});
  }
  return table.Text();
}

std::string SummaryTable(const Validation& v) {
  Table table({"mean difference of MFU, points", ">cells", ">absolute",
               ">signed", ">must"});
  for (const auto& method : v.methods) {
    table.Add({method.name, fmt::format("{}", method.cells),
               fmt::format("{:.2f}", method.mean_difference),
               fmt::format("{:+.2f}", method.mean_bias),
               fmt::format("<= {}", method.must)});
  }
  return table.Text() +
         fmt::format(
             "fits or out of memory right: {:.1f} % of {} cells (must >= {} "
             "%)\nlongest context within one doubling: {:.1f} % of {} (must "
             ">= {} %), exact: {:.1f} % (must >= {} %)\n",
             100 * v.fits_right, v.cells.size(),
             100 * planner::train::kFitsMust, 100 * v.lengths_within,
             v.lengths.size(), 100 * planner::train::kWithinMust,
             100 * v.lengths_exact, 100 * planner::train::kExactMust);
}

std::string RowTable(const Validation& validation) {
  Table table({"publication", "model", "hardware", ">GPUs", ">tokens", "method",
               "quantity", ">published", ">ours", ">error", ""});
  for (const ValidatedRow& row : validation.rows) {
    table.Add({row.publication, row.model, row.hardware,
               fmt::format("{}", row.gpus),
               row.seq_len > 0 ? TokensText(row.seq_len) : "",
               std::string(planner::train::MethodName(*row.method)),
               row.quantity, fmt::format("{:.10g}", row.value),
               row.seq_len > 0 ? fmt::format("{:.4g}", row.ours)
                               : fmt::format("{:.10g}", row.ours),
               fmt::format("{:+.1f} %", 100 * row.error()),
               !row.judged ? "fit: not judged"
               : row.fits  ? ""
                           : "no memory by ours"});
  }
  return table.Text();
}

std::string JudgedTable(const Validation& validation) {
  Table table({"absolute error of judged rows", ">rows", ">median", "must",
               ">worst", "must", ""});
  const auto must = [](double limit) {
    return std::isfinite(limit) ? fmt::format("<= {:.0f} %", 100 * limit) : "";
  };
  for (const planner::train::JudgedGroup& group : validation.judged) {
    table.Add({group.name, fmt::format("{}", group.rows), Percent(group.median),
               must(group.median_must), Percent(group.worst),
               must(group.worst_must), group.ok() ? "" : "missed"});
  }
  return table.Text();
}

std::string ValidationJson(const Validation& v) {
  using Json = nlohmann::ordered_json;
  Json json;
  json["ok"] = v.ok();
  for (const auto& method : v.methods) {
    json["methods"].push_back(
        {{"name", method.name},
         {"cells", method.cells},
         {"mean_difference_points", method.mean_difference},
         {"mean_signed_points", method.mean_bias},
         {"must_points", method.must}});
  }
  json["fits_right"] = v.fits_right;
  json["lengths_within_one_doubling"] = v.lengths_within;
  json["lengths_exact"] = v.lengths_exact;
  for (const ValidatedCell& cell : v.cells) {
    json["cells"].push_back(
        {{"table", cell.table},
         {"method", cell.label},
         {"model", cell.model},
         {"gpus", cell.gpus},
         {"seq_len", cell.seq_len},
         {"published_fits", cell.published_fits()},
         {"fits", cell.fits},
         {"mfu", cell.mfu},
         {"published_mfu",
          cell.mfu_percent ? Json(*cell.mfu_percent / 100) : nullptr}});
  }
  for (const ValidatedLength& row : v.lengths) {
    json["lengths"].push_back({{"model", row.model},
                               {"hardware", row.hardware},
                               {"gpus", row.gpus},
                               {"published", row.tokens},
                               {"or_more", row.or_more},
                               {"tokens", row.ours},
                               {"rounded", row.rounded},
                               {"doublings", row.doublings()},
                               {"stopped_by", row.stopped_by}});
  }
  for (const ValidatedRow& row : v.rows) {
    json["rows"].push_back({{"publication", row.publication},
                            {"model", row.model},
                            {"hardware", row.hardware},
                            {"method", planner::train::MethodName(*row.method)},
                            {"gpus", row.gpus},
                            {"seq_len", row.seq_len},
                            {"quantity", row.quantity},
                            {"published", row.value},
                            {"ours", row.ours},
                            {"judged", row.judged},
                            {"fits", row.fits}});
  }
  for (const planner::train::JudgedGroup& group : v.judged) {
    json["judged"].push_back({{"name", group.name},
                              {"rows", group.rows},
                              {"median", group.median},
                              {"worst", group.worst},
                              {"ok", group.ok()}});
  }
  return JsonLine(json);
}

int RunValidate(bool json) {
  const auto validation = planner::train::ValidateOnPapers();
  if (!validation.ok()) return ReportError(validation.status());
  const Validation& v = *validation;
  const std::string text =
      json ? ValidationJson(v)
           : "MFU in percent, given the published strategies\n" +
                 absl::StrJoin({CellTable(v), LengthTable(v), SummaryTable(v),
                                RowTable(v), JudgedTable(v)},
                               "\n");
  std::fputs(text.c_str(), stdout);  // fmt::print throws on a full disk
  return v.ok() ? 0 : 1;
}

}  // namespace

DeskCommand AddPlanValidate(CLI::App& plan) {
  CLI::App* app = plan.add_subcommand(
      "validate", "the cost model beside the papers' tables");
  auto json = std::make_shared<bool>(false);
  app->add_flag("--json", *json, "print JSON");
  app->footer(
      "Examples:\n"
      "  sluicectl plan validate             how far the cost model is off\n"
      "  sluicectl plan validate --json\n\n"
      "Exit status: 0 within the project's limits of error for the tables of "
      "MEMO and FPDT; 1\nbeyond. Groups of judged rows beyond theirs say "
      "\"missed\".");
  return {app, [json] { return RunValidate(*json); }};
}

}  // namespace sluice::ctl
