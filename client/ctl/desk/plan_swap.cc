// sluicectl plan swap: what each rank of a node keeps, swaps and recomputes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "client/ctl/desk/plan_commands.h"
#include "client/ctl/text/format.h"
#include "client/ctl/text/output.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/plan/json_reader.h"

namespace sluice::ctl {
namespace {

using plan::FieldReader;
using plan::TokenFractions;
using planner::CapacityRow;
using planner::NodeSwapResult;
using planner::SwapObjective;
using Json = nlohmann::ordered_json;
using RowKind = CapacityRow::Kind;
using SwapProblem = planner::NodeSwapProblem;

constexpr const char* kSwapExamples = R"(Examples:
  sluicectl plan swap node.json                 what each rank does, and why
  sluicectl plan swap node.json --policy memo   one alpha per rank, as the paper
  generate | sluicectl plan swap - --json

NODE.json has links, numa and ranks (sluicectl plan swap --example). Exit
status: 0 done; 2 bad input; 3 memory does not
suffice; 1 a fault. Links that are too slow refuse nothing: the answer says by
how much the step is longer.)";

constexpr const char* kExample = R"({"links": [
  {"name": "pcie0", "h2d_bytes_per_s": 25e9, "d2h_bytes_per_s": 25e9, "total_bytes_per_s": 40e9},
  {"name": "switch0", "h2d_bytes_per_s": 50e9, "d2h_bytes_per_s": 50e9}],
 "numa": [{"id": 0, "host_budget_bytes": 1e12}],
 "ranks": [
  {"name": "0", "numa": 0, "links": ["pcie0", "switch0"], "layers": 32, "resident_layers": 2,
   "gpu_budget_bytes": 2e10, "forward_layer_s": 0.9, "backward_layer_s": 2.0,
   "forward_d2h_fixed_bytes": 1e8, "forward_h2d_fixed_bytes": 4e9,
   "backward_d2h_fixed_bytes": 2e9, "backward_h2d_fixed_bytes": 5e9, "host_fixed_bytes": 1e10,
   "tensors": [
    {"name": "layer_input", "bytes": 1e9, "must": "swap"},
    {"name": "attention_output", "bytes": 1e9},
    {"name": "ffn_norm", "bytes": 1e9, "recompute_s": 0.005},
    {"name": "ffn_up", "bytes": 24e9, "recompute_s": 0.05}]}]}
)";

constexpr size_t kMostBytes = 16 << 20;
constexpr size_t kMostLinks = 1024;
constexpr size_t kMostRanks = 256;
constexpr size_t kMostTensors = 1024;  // per kind
constexpr size_t kMostKinds = 64;
constexpr size_t kLongestName = 256;
constexpr double kMaxNumber = 1e18;

double ReadAmount(FieldReader& in, const char* key) {
  return in.Number(key, 0, kMaxNumber);
}
std::optional<double> OptionalAmount(FieldReader& in, const char* key) {
  return in.Has(key) ? std::optional(ReadAmount(in, key)) : std::nullopt;
}
double AmountOrZero(FieldReader& in, const char* key) {
  return OptionalAmount(in, key).value_or(0);
}

SwapProblem::Link ReadLink(FieldReader in) {
  SwapProblem::Link link = {
      .name = in.Text("name", kLongestName),
      .h2d_bytes_per_s = ReadAmount(in, "h2d_bytes_per_s"),
      .d2h_bytes_per_s = ReadAmount(in, "d2h_bytes_per_s"),
      .total_bytes_per_s = OptionalAmount(in, "total_bytes_per_s")};
  in.Finish();
  return link;
}

SwapProblem::Must ReadMust(FieldReader& in) {
  if (!in.Has("must")) return SwapProblem::Must::kNothing;
  const std::string must = in.Choice("must", {"keep", "swap", "recompute"});
  return must == "keep"   ? SwapProblem::Must::kKeep
         : must == "swap" ? SwapProblem::Must::kSwap
                          : SwapProblem::Must::kRecompute;
}

// Reads all fields of a kind except its name and tensors.
SwapProblem::Kind ReadKind(FieldReader& in) {
  return {
      .layers = in.Int("layers", 1, 1'000'000),
      .resident_layers = in.Int("resident_layers", 0, 1'000'000),
      .forward_layer_s = ReadAmount(in, "forward_layer_s"),
      .backward_layer_s = ReadAmount(in, "backward_layer_s"),
      .forward_d2h_fixed_bytes = AmountOrZero(in, "forward_d2h_fixed_bytes"),
      .forward_h2d_fixed_bytes = AmountOrZero(in, "forward_h2d_fixed_bytes"),
      .backward_d2h_fixed_bytes = AmountOrZero(in, "backward_d2h_fixed_bytes"),
      .backward_h2d_fixed_bytes = AmountOrZero(in, "backward_h2d_fixed_bytes")};
}

void ReadTensors(FieldReader& in, size_t kind, SwapProblem::Rank* rank) {
  in.Each("tensors", kMostTensors, [&](FieldReader tensor, size_t) {
    rank->tensors.push_back(
        {.name = tensor.Text("name", kLongestName),
         .kind = kind,
         .bytes = ReadAmount(tensor, "bytes"),
         .recompute_s = OptionalAmount(tensor, "recompute_s"),
         .must = ReadMust(tensor)});
    tensor.Finish();
  });
}

SwapProblem::Rank ReadRank(FieldReader in) {
  SwapProblem::Rank rank;
  rank.name = in.Text("name", kLongestName);
  rank.numa = in.Int("numa", 0, INT32_MAX);
  in.Each("links", kMostLinks, [&rank](FieldReader link, size_t) {
    rank.links.push_back(link.SelfText(kLongestName));
  });
  rank.gpu_budget_bytes = ReadAmount(in, "gpu_budget_bytes");
  rank.host_fixed_bytes = AmountOrZero(in, "host_fixed_bytes");
  // The fields of a single, unnamed kind are among the rank's fields.
  if (!in.Has("kinds")) {
    rank.kinds = {ReadKind(in)};
    ReadTensors(in, 0, &rank);
  } else {
    rank.kinds.clear();
    in.Each("kinds", kMostKinds, [&rank](FieldReader kind, size_t k) {
      std::string name = kind.Text("name", kLongestName);
      rank.kinds.push_back(ReadKind(kind));
      rank.kinds.back().name = std::move(name);
      ReadTensors(kind, k, &rank);
      kind.Finish();
    });
  }
  in.Finish();
  return rank;
}

// ---- The answer, in words and as JSON ----

// Returns whether the row is about a link; other rows are about memory.
bool IsLink(const CapacityRow& row) {
  return row.kind != RowKind::kHost && row.kind != RowKind::kLimit &&
         row.kind != RowKind::kGpu;
}
const char* UnitOf(const CapacityRow& row) {
  return IsLink(row) ? "GB/s" : "GiB";
}
bool Lacks(const CapacityRow& row) { return row.excess > 1e-9; }
double Share(const CapacityRow& row) {
  if (row.capacity > 0) return row.used / row.capacity;
  return row.used > 0 ? 1 : 0;
}

std::string ByteText(double bytes) {
  return Size(std::llround(std::min(bytes, 9e18)));
}
std::string RowAmount(const CapacityRow& row, double value) {
  return IsLink(row) ? fmt::format("{:.2f} GB/s", value / 1e9)
                     : ByteText(value);
}
std::string Seconds(double seconds) { return fmt::format("{:.4g} s", seconds); }

// Formats "KKKKKSSSSSSSSSSrrrrr" for the kept, swapped and recomputed
// fractions, with at least one character for each fraction above 0.
std::string FractionBar(const TokenFractions& f) {
  constexpr int kWide = 20;
  int width[] = {0, 0, 0}, sum = 0;
  for (int i = 0; const double part : {f.keep, f.swap, f.recompute}) {
    if (part > 0) width[i] = std::max<int>(1, std::lround(part * kWide));
    sum += width[i++];
  }
  *std::max_element(width, width + 3) += kWide - sum;
  return std::string(width[0], 'K') + std::string(width[1], 'S') +
         std::string(width[2], 'r');
}

// Formats a decrease of the value `of`, or "-" within the LP's rounding error.
std::string Less(double fall, double of, std::string (*text)(double)) {
  if (std::fabs(fall) <= 1e-9 * of) return "-";
  return (fall > 0 ? "-" : "+") + text(std::fabs(fall));
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
  if (!result.memo) {
    return text +
           fmt::format("memo   no plan: {}\n", Printable(result.no_memo));
  }
  return text + ObjectiveLine("memo ", result.memo->objective) +
         fmt::format("       alpha {:.4f}\n",
                     fmt::join(result.memo->alpha, ", "));
}

Json ObjectiveJson(const SwapObjective& objective) {
  return {{"step_s", objective.step_s},
          {"recompute_s", objective.recompute_s},
          {"moved_bytes", objective.moved_bytes}};
}

int64_t MovingLayers(const SwapProblem::Kind& kind) {
  return kind.layers - kind.resident_layers;
}

class SwapAnswer {
 public:
  SwapAnswer(const SwapProblem& problem, const NodeSwapResult& result)
      : problem_(problem), result_(result) {}

  std::string Words(bool joint) const {
    if (joint && !result_.feasible) return Infeasible();
    std::string text = Objectives(result_);
    if (!result_.feasible) return text;
    if (joint) text += Overload();
    return text + RankTable() + Fractions() + Use() +
           BuysText(joint ? *result_.joint : result_.memo->objective);
  }

  std::string Object(bool joint) const {
    Json json = {
        {"feasible", result_.feasible},
        {"in_time", result_.in_time},
        {"stall_s", result_.stall_s},
        {"hidden_step_s",
         result_.hidden_step_s ? Json(*result_.hidden_step_s) : nullptr},
        {"policy", joint ? "joint" : "memo"},
        {"joint", result_.joint ? ObjectiveJson(*result_.joint) : nullptr},
        {"memo", nullptr}};
    if (result_.memo) {
      json["memo"] = ObjectiveJson(result_.memo->objective);
      json["memo"]["alpha"] = result_.memo->alpha;
    } else {
      json["no_memo"] = result_.no_memo;
    }
    json["ranks"] = RanksJson();
    json["links"] = Links();
    json["numa"] = Memory(RowKind::kHost);
    json["gpus"] = Memory(RowKind::kGpu);
    json["binding"] = Binding();
    if (result_.feasible) json["one_more_buys"] = BuysJson();
    if (!result_.feasible || !result_.in_time) json["excess"] = ExcessJson();
    return JsonLine(json);
  }

 private:
  std::string Name(const CapacityRow& row) const {
    return planner::RowName(problem_, row);
  }
  std::string Name(size_t rank, size_t tensor) const {
    const SwapProblem::Rank& of = problem_.ranks[rank];
    return TensorName(of, of.tensors[tensor]);
  }
  bool Stays(size_t rank) const {
    return absl::c_all_of(problem_.ranks[rank].kinds, [](const auto& kind) {
      return MovingLayers(kind) <= 0;
    });
  }
  // Returns keep = 1 if all layers of the kind stay on the GPU.
  TokenFractions FractionsOf(size_t rank, size_t tensor) const {
    const SwapProblem::Rank& of = problem_.ranks[rank];
    return MovingLayers(of.kinds[of.tensors[tensor].kind]) > 0
               ? result_.ranks[rank].tensors[tensor]
               : TokenFractions{.keep = 1};
  }

  bool Alike(size_t a, size_t b) const {
    if (Stays(a) || Stays(b)) return Stays(a) && Stays(b);
    const size_t tensors = problem_.ranks[a].tensors.size();
    if (problem_.ranks[b].tensors.size() != tensors) return false;
    for (size_t t = 0; t < tensors; ++t) {
      const TokenFractions& f = result_.ranks[a].tensors[t];
      const TokenFractions& g = result_.ranks[b].tensors[t];
      if (Name(a, t) != Name(b, t) || std::fabs(f.keep - g.keep) > 5e-4 ||
          std::fabs(f.swap - g.swap) > 5e-4) {
        return false;
      }
    }
    return true;
  }

  // Formats one table for each group of ranks with equal fractions.
  std::string Fractions() const {
    std::string text;
    std::vector<bool> shown(result_.ranks.size(), false);
    for (size_t r = 0; r < shown.size(); ++r) {
      if (shown[r]) continue;
      std::vector<std::string> names;
      for (size_t other = r; other < shown.size(); ++other) {
        if (shown[other] || !Alike(r, other)) continue;
        shown[other] = true;
        names.push_back(problem_.ranks[other].name);
      }
      text += fmt::format("\nrank{} {}\n", names.size() > 1 ? "s" : "",
                          Printable(absl::StrJoin(names, ", "))) +
              FractionTable(r);
    }
    return text;
  }

  std::string FractionTable(size_t rank) const {
    if (Stays(rank)) {
      return "  all layers stay on the GPU: nothing is swapped or recomputed\n";
    }
    Table table({"  TENSOR", ">PER LAYER", ">KEPT", ">SWAPPED", ">RECOMPUTED",
                 "Kept Swapped recomputed"});
    for (size_t t = 0; t < problem_.ranks[rank].tensors.size(); ++t) {
      const TokenFractions f = FractionsOf(rank, t);
      table.Add({"  " + Name(rank, t),
                 ByteText(problem_.ranks[rank].tensors[t].bytes),
                 Percent(f.keep), Percent(f.swap), Percent(f.recompute),
                 FractionBar(f)});
    }
    return table.empty() ? "  no tensors\n" : table.Text();
  }

  std::string RankTable() const {
    Table table({"RANK", ">STEP", ">RECOMPUTATION", ""});
    for (size_t r = 0; r < result_.ranks.size(); ++r) {
      const planner::RankSwap& rank = result_.ranks[r];
      table.Add({problem_.ranks[r].name, Seconds(rank.step_s),
                 Seconds(rank.added_s), rank.slowest ? "slowest" : ""});
    }
    return "\n" + table.Text();
  }

  std::string Use() const {
    Table table({"CAPACITY", ">USED", ">OF", "USE", ""});
    for (const CapacityRow& row : result_.rows) {
      table.Add({Name(row), RowAmount(row, row.used),
                 RowAmount(row, row.capacity),
                 Bar(row.binds ? row.capacity : row.used, row.capacity),
                 row.binds ? "full" : ""});
    }
    return "\n" + table.Text();
  }

  std::string BuysText(const SwapObjective& now) const {
    Table table({"ONE MORE", "", ">STEP", ">RECOMPUTATION", ">MOVED"});
    for (const CapacityRow& row : result_.rows) {
      const SwapObjective& fall = row.one_more;
      const std::string step = Less(fall.step_s, now.step_s, Seconds);
      const std::string recompute = Less(fall.recompute_s, now.step_s, Seconds);
      const std::string moved =
          Less(fall.moved_bytes, now.moved_bytes, ByteText);
      if (step == "-" && recompute == "-" && moved == "-") continue;
      table.Add({UnitOf(row), Name(row), step, recompute, moved});
    }
    return "\n" + (table.empty()
                       ? "One more GiB or GB/s anywhere buys nothing.\n"
                       : table.Text());
  }

  std::string ExcessText() const {
    Table table({"  CAPACITY", ">NEEDED", ">THERE IS", ">EXCESS"});
    for (const CapacityRow& row : result_.rows) {
      if (!Lacks(row)) continue;
      table.Add({"  " + Name(row), RowAmount(row, row.used),
                 RowAmount(row, row.capacity), Percent(row.excess)});
    }
    return table.Text();
  }

  std::string Infeasible() const {
    double sum = 0;
    for (const CapacityRow& row : result_.rows) sum += row.excess;
    return fmt::format(
        "Nothing fits. The least that is missing, {:.4g} capacities in all:\n"
        "{}",
        sum, ExcessText());
  }

  // Returns "" if compute hides all copies. An overloaded link does not make
  // the plan infeasible.
  std::string Overload() const {
    if (result_.in_time) return "";
    const double step = result_.joint->step_s;
    const std::string why =
        result_.hidden_step_s
            ? fmt::format(
                  "Some copies take longer than compute, because a step "
                  "that hides all copies takes longer still ({})",
                  Seconds(*result_.hidden_step_s))
            : "What must be copied does not hide";
    return fmt::format(
        "{}: the step takes {} ({:.1f} %) longer, {}. The links lack\n{}", why,
        Seconds(result_.stall_s), 100 * result_.stall_s / step,
        Seconds(step + result_.stall_s), ExcessText());
  }

  Json RanksJson() const {
    Json ranks = Json::array();
    for (size_t r = 0; r < result_.ranks.size(); ++r) {
      Json tensors = Json::array();
      const SwapProblem::Rank& rank = problem_.ranks[r];
      int64_t moving_layers = 0;
      for (const auto& kind : rank.kinds) moving_layers += MovingLayers(kind);
      for (size_t t = 0; t < rank.tensors.size(); ++t) {
        const TokenFractions f = FractionsOf(r, t);
        Json tensor = {{"name", rank.tensors[t].name},
                       {"keep", f.keep},
                       {"swap", f.swap},
                       {"recompute", f.recompute}};
        const std::string& kind = rank.kinds[rank.tensors[t].kind].name;
        if (kind != plan::kOneKind) tensor["kind"] = kind;
        tensors.push_back(std::move(tensor));
      }
      ranks.push_back({{"name", rank.name},
                       {"added_s", result_.ranks[r].added_s},
                       {"step_s", result_.ranks[r].step_s},
                       {"stall_s", result_.ranks[r].stall_s},
                       {"slowest", result_.ranks[r].slowest},
                       {"moving_layers", moving_layers},
                       {"tensors", std::move(tensors)}});
    }
    return ranks;
  }

  Json Links() const {
    Json links = Json::array();
    for (const auto& link : problem_.links) {
      links.push_back({{"name", link.name}});
    }
    for (const CapacityRow& row : result_.rows) {
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

  Json Memory(RowKind kind) const {
    Json memory = Json::array();
    for (const CapacityRow& row : result_.rows) {
      if (row.kind != kind) continue;
      const bool host = kind == RowKind::kHost;
      memory.push_back(
          {{host ? "id" : "rank", host ? Json(problem_.numa[row.index].id)
                                       : Json(problem_.ranks[row.index].name)},
           {"used_bytes", row.used},
           {"budget_bytes", row.capacity},
           {"use", Share(row)}});
    }
    return memory;
  }

  Json Binding() const {
    Json binding = Json::array();
    for (const CapacityRow& row : result_.rows) {
      if (row.binds) binding.push_back(Name(row));
    }
    for (size_t r = 0; r < result_.ranks.size(); ++r) {
      if (!result_.ranks[r].slowest) continue;
      binding.push_back("step of rank " + problem_.ranks[r].name);
    }
    return binding;
  }

  Json BuysJson() const {
    Json buys = Json::array();
    for (const CapacityRow& row : result_.rows) {
      buys.push_back({{"row", Name(row)},
                      {"one_more", UnitOf(row)},
                      {"less", ObjectiveJson(row.one_more)}});
    }
    return buys;
  }

  Json ExcessJson() const {
    Json excess = Json::array();
    for (const CapacityRow& row : result_.rows) {
      if (!Lacks(row)) continue;
      const std::string unit = IsLink(row) ? "_bytes_per_s" : "_bytes";
      excess.push_back({{"row", Name(row)},
                        {"excess", row.excess},
                        {"needed" + unit, row.used},
                        {"capacity" + unit, row.capacity}});
    }
    return excess;
  }

  const SwapProblem& problem_;
  const NodeSwapResult& result_;
};

// ---- The command ----

struct SwapFlags {
  std::string node;
  std::string policy = "joint";
  bool example = false;
  bool json = false;
};

absl::StatusOr<std::string> ReadText(const std::string& path) {
  if (path == "-") {
    return std::string(std::istreambuf_iterator<char>(std::cin), {});
  }
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is a folder: name a node's JSON file", Printable(path)));
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return absl::NotFoundError(fmt::format(
        "cannot read '{}': name a node's JSON file, or - for standard input",
        Printable(path)));
  }
  return std::string(std::istreambuf_iterator<char>(in), {});
}

absl::StatusOr<int> RunSwap(const SwapFlags& flags) {
  if (flags.example) {
    std::fputs(kExample, stdout);  // fmt::print throws on a full disk
    return 0;
  }
  if (flags.node.empty()) {
    return absl::InvalidArgumentError(
        "which node? name its JSON file; --example prints one");
  }
  if (flags.policy != "joint" && flags.policy != "memo") {
    return absl::InvalidArgumentError(fmt::format(
        "--policy '{}': there are joint and memo", Printable(flags.policy)));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadText(flags.node));
  auto problem = ReadSwapProblem(text);
  if (!problem.ok()) {
    return Annotate(problem.status(), Printable(flags.node));
  }
  const bool joint = flags.policy == "joint";
  SLUICE_ASSIGN_OR_RETURN(
      const auto result,
      planner::PlanNodeSwap(*problem, joint ? planner::SwapPolicy::kJoint
                                            : planner::SwapPolicy::kMemo));
  const SwapAnswer answer(*problem, result);
  const std::string shown =
      flags.json ? answer.Object(joint) : answer.Words(joint);
  std::fputs(shown.c_str(), stdout);
  return result.feasible ? 0 : kDoesNotFit;
}

}  // namespace

absl::StatusOr<SwapProblem> ReadSwapProblem(std::string_view json) {
  absl::Status status;
  const nlohmann::json document = plan::ParseChecked(json, kMostBytes, &status);
  SLUICE_RETURN_IF_ERROR(status);
  FieldReader in(document, "", &status);
  SwapProblem problem;
  in.Each("links", kMostLinks, [&problem](FieldReader link, size_t) {
    problem.links.push_back(ReadLink(std::move(link)));
  });
  in.Each("numa", kMostLinks, [&problem](FieldReader numa, size_t) {
    problem.numa.push_back(
        {numa.Int("id", 0, INT32_MAX), ReadAmount(numa, "host_budget_bytes")});
    numa.Finish();
  });
  in.Each("ranks", kMostRanks, [&problem](FieldReader rank, size_t) {
    problem.ranks.push_back(ReadRank(std::move(rank)));
  });
  in.Finish();
  SLUICE_RETURN_IF_ERROR(status);
  SLUICE_RETURN_IF_ERROR(planner::CheckNodeSwap(problem));
  return problem;
}

DeskCommand AddPlanSwap(CLI::App& plan) {
  auto flags = std::make_shared<SwapFlags>();
  CLI::App* swap = plan.add_subcommand(
      "swap", "what each rank of a node keeps, swaps and recomputes");
  swap->footer(kSwapExamples);
  swap->add_option("NODE", flags->node, "the node's JSON file; -: stdin");
  swap->add_option("--policy", flags->policy,
                   "joint: one LP over all ranks (default); memo: the paper's "
                   "one alpha per rank");
  swap->add_flag("--example", flags->example, "print a node to start from");
  swap->add_flag("--json", flags->json, "print one JSON object");
  return {swap, [flags] { return ExitStatus(RunSwap(*flags)); }};
}

}  // namespace sluice::ctl
