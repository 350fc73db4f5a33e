// sluicectl plan swap: what each rank of a node keeps on the GPU, swaps and
// recomputes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "client/ctl/desk/plan_commands.h"
#include "client/ctl/desk/render_swap.h"
#include "client/ctl/desk/swap_problem.h"
#include "client/ctl/text/output.h"
#include "client/ctl/text/table.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

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
  const auto policy = flags.policy == "joint" ? planner::SwapPolicy::kJoint
                                              : planner::SwapPolicy::kMemo;
  SLUICE_ASSIGN_OR_RETURN(const auto result,
                          planner::PlanNodeSwap(*problem, policy));
  const std::string shown = flags.json ? SwapJson(*problem, result, policy)
                                       : RenderSwap(*problem, result, policy);
  std::fputs(shown.c_str(), stdout);
  return result.feasible ? 0 : kDoesNotFit;
}

}  // namespace

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
  return {swap, [flags] {
            const absl::StatusOr<int> result = RunSwap(*flags);
            return result.ok() ? *result : ReportError(result.status());
          }};
}

}  // namespace sluice::ctl
