// The commands of `sluicectl plan` that need no daemon ("desk" commands). A new
// command needs a source file, and its name here and in main.cc.
//
// Exit status: 0 done; 2 bad input, one `error:` line; 3 does not fit or
// infeasible, 130 Ctrl-C ended `plan memory` (both after the answer is
// printed); 1 any other failure.
// Thread safety: PlanSvg and ReadSwapProblem are pure functions.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "planner/memory/plan_memory.h"
#include "planner/swap/node_swap.h"
#include "planner/trace/read_trace.h"

namespace CLI {
class App;
}

namespace sluice::ctl {

// A subcommand of `plan`. If the user chose it, `run`, which owns the parsed
// flags, prints the answer and returns the exit status.
struct DeskCommand {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

using AddDeskCommand = DeskCommand(CLI::App& plan);
AddDeskCommand AddPlanMemory, AddPlanSwap, AddPlanTrain, AddPlanValidate;

// The text of train_page.html, with @DATA@ where the JSON belongs.
extern const char* const kTrainPage;

// Draws a memory plan: the x axis is time, the y axis is the address, and each
// buffer is a rectangle. Returns an SVG document, light or dark as its viewer
// prefers. A buffer of at least a few pixels has a tooltip; smaller ones are
// merged into pixels, so that the file stays below 1 MB at 20,000 buffers.
// Equal plans give equal bytes. REQUIRES: one offset per buffer.
std::string PlanSvg(const planner::NamedTrace& named,
                    const planner::MemoryPlan& plan);

// Parses the JSON input of `plan swap`. InvalidArgument: a key is unknown or
// missing, or a value has the wrong type or is negative. The message is one
// line with the key's path.
absl::StatusOr<planner::NodeSwapProblem> ReadSwapProblem(std::string_view json);

}  // namespace sluice::ctl
