#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "client/ctl/desk/swap.h"
#include "client/ctl/text/format.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

using plan::TokenFractions;
using planner::CapacityRow;
using planner::NodeSwapProblem;
using planner::NodeSwapResult;
using planner::RankSwap;
using planner::SwapObjective;
using RowKind = CapacityRow::Kind;
using Json = nlohmann::ordered_json;

// Other rows are memory or limits.
bool IsLink(const CapacityRow& row) {
  return row.kind != RowKind::kHost && row.kind != RowKind::kLimit &&
         row.kind != RowKind::kGpu;
}

std::string ByteText(double bytes) {
  return Size(static_cast<int64_t>(std::llround(std::min(bytes, 9e18))));
}
std::string RowAmount(const CapacityRow& row, double value) {
  return IsLink(row) ? fmt::format("{:.2f} GB/s", value / 1e9)
                     : ByteText(value);
}
std::string Seconds(double seconds) { return fmt::format("{:.4g} s", seconds); }
std::string SharePercent(double part) {
  return fmt::format("{:.1f} %", 100 * part);
}

// Formats "KKKKKSSSSSSSSSSrrrrr" for the kept, swapped and recomputed
// fractions, at least one character for any above 0.
std::string FractionBar(const TokenFractions& f) {
  constexpr int kWide = 20;
  const std::pair<double, char> parts[] = {
      {f.keep, 'K'}, {f.swap, 'S'}, {f.recompute, 'r'}};
  int width[3], sum = 0;
  for (int i = 0; i < 3; ++i) {
    const double exact = parts[i].first * kWide;
    width[i] = parts[i].first > 0
                   ? std::max(1, static_cast<int>(std::lround(exact)))
                   : 0;
    sum += width[i];
  }
  *std::max_element(width, width + 3) += kWide - sum;
  std::string bar;
  for (int i = 0; i < 3; ++i) {
    bar.append(static_cast<size_t>(width[i]), parts[i].second);
  }
  return bar;
}

bool Stays(const NodeSwapProblem::Kind& kind) {
  return kind.resident_layers >= kind.layers;
}
bool Stays(const NodeSwapProblem& problem, size_t rank) {
  const auto& kinds = problem.ranks[rank].kinds;
  return std::all_of(
      kinds.begin(), kinds.end(),
      [](const NodeSwapProblem::Kind& kind) { return Stays(kind); });
}

bool Alike(const NodeSwapProblem& problem, const NodeSwapResult& result,
           size_t a, size_t b) {
  if (Stays(problem, a) != Stays(problem, b)) return false;
  if (Stays(problem, a)) return true;
  const auto& x = problem.ranks[a].tensors;
  const auto& y = problem.ranks[b].tensors;
  if (x.size() != y.size()) return false;
  for (size_t t = 0; t < x.size(); ++t) {
    const TokenFractions& f = result.ranks[a].tensors[t];
    const TokenFractions& g = result.ranks[b].tensors[t];
    if (TensorName(problem.ranks[a], x[t]) !=
            TensorName(problem.ranks[b], y[t]) ||
        std::fabs(f.keep - g.keep) > 5e-4 ||
        std::fabs(f.swap - g.swap) > 5e-4) {
      return false;
    }
  }
  return true;
}

// One table for all ranks with equal fractions.
std::string Fractions(const NodeSwapProblem& problem,
                      const NodeSwapResult& result) {
  std::string text;
  std::vector<bool> shown(result.ranks.size(), false);
  for (size_t r = 0; r < result.ranks.size(); ++r) {
    if (shown[r]) continue;
    std::string names;
    int count = 0;
    for (size_t other = r; other < result.ranks.size(); ++other) {
      if (shown[other] || !Alike(problem, result, r, other)) continue;
      shown[other] = true;
      names += (names.empty() ? "" : ", ") + problem.ranks[other].name;
      ++count;
    }
    text +=
        fmt::format("\nrank{} {}\n", count > 1 ? "s" : "", Printable(names));
    if (Stays(problem, r)) {
      text +=
          "  all layers stay on the GPU: nothing is swapped or recomputed\n";
      continue;
    }
    Table table({"  TENSOR", ">PER LAYER", ">KEPT", ">SWAPPED", ">RECOMPUTED",
                 "Kept Swapped recomputed"});
    for (size_t t = 0; t < problem.ranks[r].tensors.size(); ++t) {
      const NodeSwapProblem::Tensor& tensor = problem.ranks[r].tensors[t];
      const bool stays = Stays(problem.ranks[r].kinds[tensor.kind]);
      const TokenFractions f =
          stays ? TokenFractions{.keep = 1} : result.ranks[r].tensors[t];
      table.Add({"  " + TensorName(problem.ranks[r], tensor),
                 ByteText(tensor.bytes), SharePercent(f.keep),
                 SharePercent(f.swap), SharePercent(f.recompute),
                 FractionBar(f)});
    }
    text += table.empty() ? "  no tensors\n" : table.Text();
  }
  return text;
}

std::string RankTable(const NodeSwapProblem& problem,
                      const NodeSwapResult& result) {
  Table table({"RANK", ">STEP", ">RECOMPUTATION", ""});
  for (size_t r = 0; r < result.ranks.size(); ++r) {
    const RankSwap& rank = result.ranks[r];
    table.Add({problem.ranks[r].name, Seconds(rank.step_s),
               Seconds(rank.added_s), rank.slowest ? "slowest" : ""});
  }
  return "\n" + table.Text();
}

std::string Use(const NodeSwapProblem& problem, const NodeSwapResult& result) {
  Table table({"CAPACITY", ">USED", ">OF", "USE", ""});
  for (const CapacityRow& row : result.rows) {
    table.Add({planner::RowName(problem, row), RowAmount(row, row.used),
               RowAmount(row, row.capacity),
               Bar(row.binds ? row.capacity : row.used, row.capacity),
               row.binds ? "full" : ""});
  }
  return "\n" + table.Text();
}

// A decrease within the LP's rounding error counts as none.
std::string Less(double fall, double of, std::string shown) {
  if (std::fabs(fall) <= 1e-9 * of) return "-";
  return (fall > 0 ? "-" : "+") + shown;
}

std::string BuysText(const NodeSwapProblem& problem,
                     const NodeSwapResult& result, const SwapObjective& now) {
  Table table({"ONE MORE", "", ">STEP", ">RECOMPUTATION", ">MOVED"});
  for (const CapacityRow& row : result.rows) {
    const SwapObjective& fall = row.one_more;
    const std::string step =
        Less(fall.step_s, now.step_s, Seconds(std::fabs(fall.step_s)));
    const std::string recompute = Less(fall.recompute_s, now.step_s,
                                       Seconds(std::fabs(fall.recompute_s)));
    const std::string moved = Less(fall.moved_bytes, now.moved_bytes,
                                   ByteText(std::fabs(fall.moved_bytes)));
    if (step == "-" && recompute == "-" && moved == "-") continue;
    table.Add({IsLink(row) ? "GB/s" : "GiB", planner::RowName(problem, row),
               step, recompute, moved});
  }
  if (table.empty()) {
    return "\nOne more GiB or GB/s anywhere buys nothing.\n";
  }
  return "\n" + table.Text();
}

std::string ObjectiveLine(const char* name, const SwapObjective& objective) {
  return fmt::format("{}  step {}, recomputation {} over all ranks, {} moved\n",
                     name, Seconds(objective.step_s),
                     Seconds(objective.recompute_s),
                     ByteText(objective.moved_bytes));
}

std::string Objectives(const NodeSwapResult& result) {
  std::string text;
  if (result.joint) text += ObjectiveLine("joint", *result.joint);
  if (result.memo) {
    text += ObjectiveLine("memo ", result.memo->objective);
    std::string alphas;
    for (const double alpha : result.memo->alpha) {
      alphas += fmt::format("{}{:.4f}", alphas.empty() ? "" : ", ", alpha);
    }
    text += fmt::format("       alpha {}\n", alphas);
  } else {
    text += fmt::format("memo   no plan: {}\n", Printable(result.no_memo));
  }
  return text;
}

std::string ExcessText(const NodeSwapProblem& problem,
                       const NodeSwapResult& result) {
  Table table({"  CAPACITY", ">NEEDED", ">THERE IS", ">EXCESS"});
  for (const CapacityRow& row : result.rows) {
    if (row.excess <= 1e-9) continue;
    table.Add({"  " + planner::RowName(problem, row), RowAmount(row, row.used),
               RowAmount(row, row.capacity), SharePercent(row.excess)});
  }
  return table.Text();
}

std::string Infeasible(const NodeSwapProblem& problem,
                       const NodeSwapResult& result) {
  double sum = 0;
  for (const CapacityRow& row : result.rows) sum += row.excess;
  return fmt::format(
      "Nothing fits. The least that is missing, {:.4g} capacities in all:\n{}",
      sum, ExcessText(problem, result));
}

// Empty if all copies hide. An overloaded link does not make the plan
// infeasible.
std::string Overload(const NodeSwapProblem& problem,
                     const NodeSwapResult& result) {
  if (result.in_time) return "";
  const double step = result.joint->step_s;
  const std::string why =
      result.hidden_step_s
          ? fmt::format("Some copies show, as {} without them is longer",
                        Seconds(*result.hidden_step_s))
          : "What must be copied does not hide";
  return fmt::format(
      "{}: the step takes {} ({:.1f} %) longer, {}. The links lack\n{}", why,
      Seconds(result.stall_s), 100 * result.stall_s / step,
      Seconds(step + result.stall_s), ExcessText(problem, result));
}

Json Objective(const SwapObjective& objective) {
  return {{"step_s", objective.step_s},
          {"recompute_s", objective.recompute_s},
          {"moved_bytes", objective.moved_bytes}};
}

Json Memo(const NodeSwapResult& result) {
  if (!result.memo) return nullptr;
  Json memo = Objective(result.memo->objective);
  memo["alpha"] = result.memo->alpha;
  return memo;
}

double Share(const CapacityRow& row) {
  if (row.capacity > 0) return row.used / row.capacity;
  return row.used > 0 ? 1 : 0;
}

Json RanksJson(const NodeSwapProblem& problem, const NodeSwapResult& result) {
  Json ranks = Json::array();
  for (size_t r = 0; r < result.ranks.size(); ++r) {
    Json tensors = Json::array();
    const NodeSwapProblem::Rank& rank = problem.ranks[r];
    int64_t moving_layers = 0;
    for (const NodeSwapProblem::Kind& kind : rank.kinds) {
      moving_layers += kind.layers - kind.resident_layers;
    }
    for (size_t t = 0; t < rank.tensors.size(); ++t) {
      const NodeSwapProblem::Kind& kind = rank.kinds[rank.tensors[t].kind];
      const int64_t moving = kind.layers - kind.resident_layers;
      // Layers that all stay on the GPU swap nothing.
      const plan::TokenFractions f = moving > 0
                                         ? result.ranks[r].tensors[t]
                                         : plan::TokenFractions{.keep = 1};
      Json tensor = {{"name", rank.tensors[t].name},
                     {"keep", f.keep},
                     {"swap", f.swap},
                     {"recompute", f.recompute}};
      if (kind.name != plan::kOneKind) tensor["kind"] = kind.name;
      tensors.push_back(std::move(tensor));
    }
    ranks.push_back({{"name", problem.ranks[r].name},
                     {"added_s", result.ranks[r].added_s},
                     {"step_s", result.ranks[r].step_s},
                     {"stall_s", result.ranks[r].stall_s},
                     {"slowest", result.ranks[r].slowest},
                     {"moving_layers", moving_layers},
                     {"tensors", std::move(tensors)}});
  }
  return ranks;
}

Json Links(const NodeSwapProblem& problem, const NodeSwapResult& result) {
  Json links = Json::array();
  for (const NodeSwapProblem::Link& link : problem.links) {
    links.push_back({{"name", link.name}});
  }
  for (const CapacityRow& row : result.rows) {
    if (!IsLink(row)) continue;
    const char* way = row.kind == RowKind::kLinkD2h   ? "d2h"
                      : row.kind == RowKind::kLinkH2d ? "h2d"
                                                      : "total";
    links[row.index][way] = {{"used_bytes_per_s", row.used},
                             {"capacity_bytes_per_s", row.capacity},
                             {"use", Share(row)}};
  }
  return links;
}

Json Memory(const NodeSwapProblem& problem, const NodeSwapResult& result,
            RowKind kind) {
  Json memory = Json::array();
  for (const CapacityRow& row : result.rows) {
    if (row.kind != kind) continue;
    Json entry;
    if (kind == RowKind::kHost) {
      entry["id"] = problem.numa[row.index].id;
    } else {
      entry["rank"] = problem.ranks[row.index].name;
    }
    entry["used_bytes"] = row.used;
    entry["budget_bytes"] = row.capacity;
    entry["use"] = Share(row);
    memory.push_back(std::move(entry));
  }
  return memory;
}

Json Binding(const NodeSwapProblem& problem, const NodeSwapResult& result) {
  Json binding = Json::array();
  for (const CapacityRow& row : result.rows) {
    if (row.binds) binding.push_back(planner::RowName(problem, row));
  }
  for (size_t r = 0; r < result.ranks.size(); ++r) {
    if (result.ranks[r].slowest) {
      binding.push_back("step of rank " + problem.ranks[r].name);
    }
  }
  return binding;
}

Json BuysJson(const NodeSwapProblem& problem, const NodeSwapResult& result) {
  Json buys = Json::array();
  for (const CapacityRow& row : result.rows) {
    Json entry = {{"row", planner::RowName(problem, row)},
                  {"one_more", IsLink(row) ? "GB/s" : "GiB"},
                  {"less", Objective(row.one_more)}};
    buys.push_back(std::move(entry));
  }
  return buys;
}

Json ExcessJson(const NodeSwapProblem& problem, const NodeSwapResult& result) {
  Json excess = Json::array();
  for (const CapacityRow& row : result.rows) {
    if (row.excess <= 1e-9) continue;
    const std::string unit = IsLink(row) ? "_bytes_per_s" : "_bytes";
    excess.push_back({{"row", planner::RowName(problem, row)},
                      {"excess", row.excess},
                      {"needed" + unit, row.used},
                      {"capacity" + unit, row.capacity}});
  }
  return excess;
}

}  // namespace

std::string RenderSwap(const NodeSwapProblem& problem,
                       const NodeSwapResult& result,
                       planner::SwapPolicy policy) {
  const bool joint = policy == planner::SwapPolicy::kJoint;
  if (joint && !result.feasible) return Infeasible(problem, result);
  std::string text = Objectives(result);
  if (!result.feasible) return text;
  if (joint) text += Overload(problem, result);
  text += RankTable(problem, result) + Fractions(problem, result);
  text += Use(problem, result);
  return text + BuysText(problem, result,
                         joint ? *result.joint : result.memo->objective);
}

std::string SwapJson(const NodeSwapProblem& problem,
                     const NodeSwapResult& result, planner::SwapPolicy policy) {
  const bool joint = policy == planner::SwapPolicy::kJoint;
  Json json = {
      {"feasible", result.feasible},
      {"in_time", result.in_time},
      {"stall_s", result.stall_s},
      {"hidden_step_s",
       result.hidden_step_s ? Json(*result.hidden_step_s) : Json(nullptr)},
      {"policy", joint ? "joint" : "memo"},
      {"joint", result.joint ? Objective(*result.joint) : nullptr},
      {"memo", Memo(result)}};
  if (!result.memo) json["no_memo"] = result.no_memo;
  json["ranks"] = RanksJson(problem, result);
  json["links"] = Links(problem, result);
  json["numa"] = Memory(problem, result, RowKind::kHost);
  json["gpus"] = Memory(problem, result, RowKind::kGpu);
  json["binding"] = Binding(problem, result);
  if (result.feasible) {
    json["one_more_buys"] = BuysJson(problem, result);
  }
  if (!result.feasible || !result.in_time) {
    json["excess"] = ExcessJson(problem, result);
  }
  return JsonLine(json);
}

}  // namespace sluice::ctl
