// sluicectl: asks the node's daemon, and tells people. Reads the flags only.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "client/ctl/commands.h"
#include "client/ctl/plan_commands.h"

namespace sluice::ctl {
namespace {

constexpr const char* kExamples = R"(Examples:
  sluicectl status                        pools, ranks, plans, latest events
  sluicectl --socket /tmp/s/session.sock status --json
  sluicectl jobs                          one line a job
  sluicectl plan show 3                   what a plan keeps, swaps, recomputes
  sluicectl plan show 3 --explain         and why
  sluicectl plan swap node.json           a whole node's swap plan, at a desk
  sluicectl budget                        limits and what is used of them
  sluicectl budget set --job tune --gpu 40GiB --host unlimited
  sluicectl evict tune --reason "the node is drained"

A plain user sees what is its own, the daemon's user everything. `budget set`
and `evict` are for administrators: those who may open admin.sock.)";

// A plan at a desk: a line a command.
const std::vector<AddDeskCommand> kDeskCommands = {
    AddPlanMemory,
    AddPlanSwap,
    AddPlanTrain,
    AddPlanValidate,
};

class CommandLine {
 public:
  CommandLine() {
    app_.footer(kExamples);
    app_.require_subcommand(0, 1);  // so that a wrong word is named
    app_.add_option("--socket", flags_.socket,
                    "the daemon's session socket (default: $SLUICE_SOCKET, "
                    "else /run/sluice/session.sock)");
    app_.add_option("--admin-socket", flags_.admin_socket,
                    "its admin socket (default: admin.sock beside it)");
    Json(
        Add(&app_, "status", "pools, ranks, plans, latest events", ShowStatus));
    Json(Add(&app_, "jobs", "one line a job", ShowJobs));
    AddPlan();
    AddBudget();
    AddEvict();
  }

  int Run(int argc, char** argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::CallForHelp& help) {
      return app_.exit(help);
    } catch (const CLI::ParseError& error) {
      return Misuse(error.what());
    }
    if (!chosen_) {
      return Misuse("say what to do: status, jobs, plan, budget or evict");
    }
    return chosen_();
  }

 private:
  using Command = int (*)(const Flags&);
  using Runner = std::function<int()>;

  static int Misuse(const char* what) {
    fmt::print(stderr, "error: {} (see sluicectl --help)\n", what);
    return 2;
  }

  CLI::App* Add(CLI::App* to, const char* name, const char* help,
                Command command) {
    CLI::App* added = to->add_subcommand(name, help);
    if (command != nullptr) {
      Choose(added, [this, command] { return command(flags_); });
    }
    return added;
  }

  void Choose(CLI::App* command, Runner run) {
    command->fallthrough();
    // Called parent last: a subcommand's choice stands.
    command->callback([this, run = std::move(run)] {
      if (!chosen_) chosen_ = run;
    });
  }

  CLI::App* Json(CLI::App* command) {
    command->add_flag("--json", flags_.json, "print JSON");
    return command;
  }

  void AddPlan() {
    CLI::App* plan =
        Add(&app_, "plan", "plans of your jobs, and plans at a desk", nullptr);
    plan->fallthrough()->require_subcommand(1);
    CLI::App* show = Json(Add(plan, "show", "one plan", ShowPlan));
    show->add_option("ID", flags_.plan, "its number in sluicectl status")
        ->required();
    show->add_flag("--explain", flags_.explain,
                   "why, what binds, what is proved, what more would buy");
    for (const AddDeskCommand add : kDeskCommands) {
      DeskCommand desk = add(*plan);
      Choose(desk.app, std::move(desk.run));
    }
  }

  void AddBudget() {
    CLI::App* budget =
        Json(Add(&app_, "budget", "limits and what is used", ShowBudgets));
    CLI::App* set = Add(budget, "set", "change a limit, at once", ChangeBudget);
    set->add_option("--user", flags_.user, "a user's name or number");
    set->add_option("--cgroup", flags_.cgroup,
                    "with --user: only in this cgroup");
    set->add_option("--job", flags_.job, "a job's label");
    set->add_option("--gpu", flags_.gpu,
                    "GPU memory of the node: a size, or unlimited");
    set->add_option("--host", flags_.host,
                    "pinned host memory of the node, likewise");
  }

  void AddEvict() {
    CLI::App* evict =
        Add(&app_, "evict", "end every session of a job", EvictJob);
    evict->add_option("JOB", flags_.job, "the job's label")->required();
    evict->add_option("--user", flags_.user, "only this user's job");
    evict->add_flag("--kill", flags_.kill,
                    "also kill its processes: what they have mapped is theirs "
                    "until they end");
    evict->add_option("--reason", flags_.reason, "told to the ranks");
  }

  CLI::App app_{"Asks the node's Sluice daemon who holds what.", "sluicectl"};
  Flags flags_;
  Runner chosen_;
};

}  // namespace
}  // namespace sluice::ctl

int main(int argc, char** argv) {
  return sluice::ctl::CommandLine().Run(argc, argv);
}
