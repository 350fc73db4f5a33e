// The commands of `sluicectl plan` that need no daemon ("desk" commands).
//
// Each command has its own file (plan_memory.cc, …) with its flags, prints its
// answer and returns the exit status. A new command needs its file, a line here
// and a line in main.cc's kDeskCommands.
//
// Exit status: 0 done; 2 bad input, one `error:` line; 3 does not fit or
// infeasible (the answer is printed all the same); 1 any other failure.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace sluice::ctl {

// `app` is the subcommand that was added to `plan`. If the user chose it, `run`
// is called after its flags were parsed and returns the exit status. `run` owns
// the parsed values.
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
