#include <nlohmann/json.hpp>

#include "client/ctl/desk/render_swap.h"

namespace sluice::ctl {
namespace {

using Json = nlohmann::ordered_json;
using planner::CapacityRow;
using planner::NodeSwapProblem;
using planner::NodeSwapResult;
using planner::SwapObjective;
using RowKind = CapacityRow::Kind;

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
      // If all layers of a kind stay on the GPU, they swap nothing, whatever
      // the kind's fractions are.
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
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace sluice::ctl
