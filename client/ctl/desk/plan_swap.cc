// sluicectl plan swap: what each rank of a node keeps, swaps and recomputes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "client/ctl/desk/plan_commands.h"
#include "client/ctl/text/output.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/plan/json_reader.h"

namespace sluice::ctl {
namespace {

using plan::FieldReader;
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
  // The fields of a single, unnamed kind are among the rank's.
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
  std::fputs(SwapText(*problem, result, joint, flags.json).c_str(), stdout);
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
