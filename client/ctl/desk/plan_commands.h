// The commands of `sluicectl plan` that answer at a desk, without a daemon.
//
// One file a command (plan_memory.cc, …): it has its own flags, prints and
// returns the exit status. main.cc lists the adders in kDeskCommands; a new
// command is its file, its line here and its line there.
//
// Exit status: 0 done; 2 bad input, one `error:` line; 3 does not fit or
// infeasible (what was asked for is printed all the same); 1 a fault.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace sluice::ctl {

// `app` is the subcommand that was added below `plan`; `run` is called when it
// was the one chosen, its flags parsed, and returns the exit status. `run`
// owns what its flags were parsed into.
struct DeskCommand {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

using AddDeskCommand = DeskCommand (*)(CLI::App& plan);

DeskCommand AddPlanMemory(CLI::App& plan);
DeskCommand AddPlanSwap(CLI::App& plan);
DeskCommand AddPlanTrain(CLI::App& plan);
DeskCommand AddPlanValidate(CLI::App& plan);

}  // namespace sluice::ctl
