// The commands of `sluicectl plan` that need no daemon ("desk" commands). A new
// one needs a file (as plan_memory.cc), a line here and one in kDeskCommands.
//
// Exit status: 0 done; 2 bad input, one `error:` line; 3 does not fit or
// infeasible (the answer is printed all the same); 1 any other failure.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace sluice::ctl {

// A subcommand of `plan`. If the user chose it, `run`, which owns the parsed
// flags, prints the answer and returns the exit status.
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
