// sluicectl: queries and administers the node's daemon. Defines the flags.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "client/ctl/commands.h"
#include "client/ctl/desk/plan_commands.h"
#include "client/ctl/text/output.h"
#include "proto/cli/cli.h"

namespace sluice::ctl {
namespace {

constexpr const char* kExamples = R"(Examples:
  sluicectl status                        pools, ranks, plans, latest events
  sluicectl --socket /tmp/s/session.sock status --json
  sluicectl plan show 3 --explain         what a plan does, and why
  sluicectl plan train --model llama-8b --hardware h100-80g --gpus 8 --seq-len 1M
  sluicectl budget set --job tune --gpu 40GiB --host unlimited

Each command has its own examples: sluicectl budget --help. A plain user sees
only their own jobs, the daemon's user all jobs. `budget set`, `reserve` and
`evict` are for administrators: users that may open admin.sock.)";

constexpr const char* kStatusExamples = R"(Examples:
  sluicectl status
  sluicectl --admin status           of everybody, for administrators
  sluicectl status --json | python3 -m json.tool
  watch -n 1 sluicectl status)";

constexpr const char* kJobsExamples = R"(Examples:
  sluicectl jobs             one line per job
  sluicectl jobs --json      with every rank)";

constexpr const char* kTopExamples = R"(Examples:
  sluicectl top
  sluicectl --admin top --interval 5     of everybody, every five seconds
  sluicectl top --once > now.txt         the same as sluicectl status

q or Ctrl-C ends it.)";

constexpr const char* kEventsExamples = R"(Examples:
  sluicectl events
  sluicectl --admin events --follow      everybody's, as they come
  sluicectl events --follow --json       one JSON object per line

Ctrl-C ends --follow.)";

constexpr const char* kDoctorExamples = R"(Examples:
  sluicectl doctor                       a line per check, and what mends it
  sluicectl doctor --json | python3 -m json.tool
  sluicectl --socket /tmp/s/session.sock doctor

It changes nothing, and needs neither a daemon nor a GPU. Exit status: 0 no
problem (warnings may be); 1 a problem. `python -m sluice doctor` looks at the
Python package instead, and tries a session.)";

constexpr const char* kBundleExamples = R"(Examples:
  sluicectl support-bundle                     a file in this folder
  sudo sluicectl support-bundle --out /tmp/help.tar.gz
  sluicectl support-bundle --out - | tar -tz   what would be in it

One archive for a support request: status, metrics, events, the doctor's
findings, versions, limits, the configuration without secrets, the unit's
journal. It needs no daemon, says what it left out and why, and holds names of
users, jobs and hosts: read it before you send it.)";

constexpr const char* kPlanExamples = R"(Examples:
  sluicectl plan show 3                  a plan of the node's daemon
  sluicectl plan train --model llama-8b --hardware h100-80g --gpus 8 --seq-len 1M
  sluicectl plan memory trace.csv        where every tensor goes
  sluicectl plan swap --example          a node to start from
  sluicectl plan validate                how far the cost model is off)";

constexpr const char* kShowExamples = R"(Examples:
  sluicectl plan show 3                  what plan 3 keeps, swaps, recomputes
  sluicectl plan show 3 --explain        and why, and what more would buy
  sluicectl plan show 3 --json > plan.json

The numbers of plans are in sluicectl status.)";

constexpr const char* kBudgetExamples = R"(Examples:
  sluicectl budget                       every limit that is set, and its use
  sluicectl budget --json
  sluicectl budget set --job tune --gpu 40GiB --host unlimited)";

constexpr const char* kSetExamples = R"(Examples:
  sluicectl budget set --job tune --gpu 40GiB --host unlimited
  sluicectl budget set --user alice --host 200GB
  sluicectl budget set --user 1000 --cgroup /slurm/job_7 --gpu 80GiB

40GiB is 40 x 1024^3 bytes, 40GB is 40 x 1000^3. A limit binds at once, and
still does after the daemon is started again; it wins over [budgets] in its
file.)";

constexpr const char* kReserveExamples = R"(Examples:
  sluicectl reserve --user alice --gpu 0 --memory 40GiB
  sluicectl reserve --user 1000 --cgroup /slurm/job_7 --numa 1 --memory 200GiB
  sluicectl reserve --user alice --gpu 0 --memory none
  sluicectl budget                       who has reserved what

Others' leases never take it, from now on and after the daemon is started again;
the user's own take it first. It is refused where it is not free now, or
promised to the plans of running jobs.)";

constexpr const char* kBandwidthExamples = R"(Examples:
  sluicectl bandwidth                    what each link has, and from where
  sluicectl bandwidth measure --keep     measure, and go by it
  sluicectl bandwidth forget             go by the configuration alone again)";

constexpr const char* kMeasureExamples = R"(Examples:
  sluicectl bandwidth measure
  sluicectl bandwidth measure --keep
  sluicectl bandwidth measure --seconds 5 --out links.toml
  sluicectl bandwidth measure --json

Each link is measured by all GPUs behind it at once: to the GPUs, to the host,
both. It attaches as ranks of a job bandwidth-measure-PID, leases up to 32 MiB of
each GPU and as much host memory, and does not wait for grants. With --keep the
daemon goes by it from now on, or, beside jobs, as soon as no rank is attached;
a link that the daemon's file gives a speed keeps that. Else put what is printed
into that file, then systemctl reload sluiced (or SIGHUP).)";

constexpr const char* kForgetExamples = R"(Examples:
  sluicectl bandwidth forget

What bandwidth measure --keep found is used no more: from now on, or, beside
jobs, as soon as no rank is attached.)";

constexpr const char* kDrainExamples = R"(Examples:
  sluicectl drain --reason "new driver on Monday"
  sluicectl --admin status      # who is left
  sluicectl undrain

Sessions of ranks and leases are refused from now on, with the reason, also
after the daemon is started again. What is granted stays: jobs run to their end,
or sluicectl evict ends them.)";

constexpr const char* kEvictExamples = R"(Examples:
  sluicectl evict tune --reason "the node is drained"
  sluicectl evict tune --user alice --kill)";

int Print(const absl::StatusOr<std::string>& text) {
  if (text.ok()) {
    std::fputs(text->c_str(), stdout);
    return 0;
  }
  return ReportError(text.status());
}

int Print(int exit_status) { return exit_status; }

class CommandLine {
 public:
  CommandLine() {
    app_.footer(kExamples);
    app_.require_subcommand(1);
    app_.add_option("--socket", flags_.socket,
                    "the daemon's session socket (default: $SLUICE_SOCKET, "
                    "else /run/sluice/session.sock)");
    app_.add_option("--admin-socket", flags_.admin_socket,
                    "the daemon's admin socket (default: admin.sock beside the "
                    "session socket)");
    app_.add_flag("--admin", flags_.admin,
                  "ask the admin socket, which shows the jobs of all users");
    app_.add_flag("--json", json_is_first_,
                  "the same as --json after the command");
    AddQueries();
    AddBandwidth();
    AddPlan();
    AddAdministration();
  }

  int Run(int argc, char** argv) {
    std::vector<std::string> words(argv + 1, argv + argc);
    auto done = cli::Parse(app_, words);
    // Move --json behind the command, which defines it.
    if (done.ok() && json_is_first_) {
      words.erase(std::ranges::find(words, "--json"));
      words.push_back("--json");
      done = cli::Parse(app_, words);
    }
    if (!done.ok()) return ReportError(done.status());
    FillDefaults(flags_);
    return *done ? **done : chosen_();
  }

 private:
  using Runner = std::function<int()>;

  // `run` is a Command, or prints by itself and returns the exit status.
  CLI::App& Add(CLI::App& to, const char* name, const char* help, auto* run,
                const char* examples) {
    CLI::App* added = to.add_subcommand(name, help)->footer(examples);
    added->add_flag("--json", flags_.json, "print one line of JSON");
    Choose(added, [this, run] { return Print(run(flags_)); });
    return *added;
  }

  void Choose(CLI::App* command, Runner run) {
    command->fallthrough();
    // The parent command's callback runs last, and must not replace the choice.
    command->callback([this, run = std::move(run)] {
      if (!chosen_) chosen_ = run;
    });
  }

  void AddQueries() {
    Add(app_, "status", "pools, ranks, plans, latest events", ShowStatus,
        kStatusExamples);
    Add(app_, "jobs", "one line per job", ShowJobs, kJobsExamples);
    CLI::App& top =
        Add(app_, "top", "status, redrawn every second", ShowTop, kTopExamples);
    top.add_flag("--once", flags_.once,
                 "print the status once, as --json does");
    CLI::App& events =
        Add(app_, "events", "the latest events", ShowEvents, kEventsExamples);
    events.add_flag("--follow", flags_.follow,
                    "also print new events as they come");
    for (CLI::App* each : {&top, &events}) {
      each->add_option("--interval", flags_.interval_s,
                       "seconds between two queries, 0.1 to 3600")
          ->check(cli::Between(0.1, 3600))
          ->capture_default_str();
    }
    Add(app_, "doctor", "is the daemon, and all it needs, well set up?",
        ShowDoctor, kDoctorExamples);
    CLI::App& bundle =
        Add(app_, "support-bundle", "one archive for a support request",
            WriteBundle, kBundleExamples);
    bundle.add_option("--out", flags_.out,
                      "the archive, or - for standard output (default: "
                      "sluice-support-HOST-TIME.tar.gz)");
    cli::AddCount(bundle, "--journal-lines", flags_.journal_lines,
                  "how many lines of the journal at most");
  }

  void AddBandwidth() {
    CLI::App& bandwidth =
        Add(app_, "bandwidth", "the speed of each link, and its source",
            ShowBandwidth, kBandwidthExamples);
    CLI::App& measure =
        Add(bandwidth, "measure", "copy between each GPU and host memory",
            Measure, kMeasureExamples);
    measure
        .add_option("--seconds", flags_.seconds,
                    "seconds to average each number over, 0.1 to 60")
        ->check(cli::Between(0.1, 60))
        ->capture_default_str();
    measure.add_flag("--beside-jobs", flags_.beside_jobs,
                     "measure also while jobs run, and slow them");
    measure.add_option("--out", flags_.out,
                       "file for the configuration, or - for standard "
                       "output (default: below the table)");
    measure.add_flag("--keep", flags_.keep,
                     "make the daemon use the measured speeds from now on");
    Add(bandwidth, "forget", "go by the configuration alone again", Forget,
        kForgetExamples);
  }

  void AddPlan() {
    CLI::App& plan = *app_.add_subcommand(
        "plan", "plans of your jobs, and plans without a daemon");
    plan.footer(kPlanExamples)->fallthrough()->require_subcommand(1);
    CLI::App& show = Add(plan, "show", "one plan", ShowPlan, kShowExamples);
    show.add_option("ID", flags_.plan, "the plan's number in sluicectl status")
        ->required();
    show.add_flag("--explain", flags_.explain,
                  "why, what binds, what is proved, what more would buy");
    for (AddDeskCommand* const add :
         {AddPlanMemory, AddPlanSwap, AddPlanTrain, AddPlanValidate}) {
      DeskCommand desk = add(plan);
      Choose(desk.app, std::move(desk.run));
    }
  }

  void AddAdministration() {
    CLI::App& budget =
        Add(app_, "budget", "every limit that is set, and what is used",
            ShowBudgets, kBudgetExamples);
    CLI::App& set = Add(budget, "set", "change a limit, at once", ChangeBudget,
                        kSetExamples);
    set.add_option("--user", flags_.user, "a user's name or number");
    set.add_option("--cgroup", flags_.cgroup,
                   "with --user: only in this cgroup");
    set.add_option("--job", flags_.job, "a job's label");
    set.add_option("--gpu,--gpu-memory", flags_.gpu,
                   "GPU memory of the node: a size, or unlimited");
    set.add_option("--host,--host-memory", flags_.host,
                   "pinned host memory of the node: a size, or unlimited");

    CLI::App& reserve =
        Add(app_, "reserve", "keep memory of one pool for a user",
            ReserveMemory, kReserveExamples);
    reserve.add_option("--user", flags_.user, "a user's name or number")
        ->required();
    reserve.add_option("--cgroup", flags_.cgroup, "only in this cgroup");
    reserve.add_option("--gpu", flags_.pool_gpu, "of this GPU");
    reserve.add_option("--numa", flags_.pool_numa,
                       "of the pinned host memory of this NUMA node");
    reserve
        .add_option("--memory", flags_.memory,
                    "a size, or none to end the reservation")
        ->required();

    CLI::App& evict = Add(app_, "evict", "end every session of a job", EvictJob,
                          kEvictExamples);
    evict.add_option("JOB", flags_.job, "the job's label")->required();
    evict.add_option("--user", flags_.user, "only this user's job");
    evict.add_flag("--kill", flags_.kill,
                   "also kill its processes, which hold mapped memory until "
                   "they end");
    evict.add_option("--reason", flags_.reason, "told to the ranks");

    CLI::App& drain = Add(app_, "drain", "grant nothing new, until undrain",
                          DrainNode, kDrainExamples);
    drain.add_option("--reason", flags_.reason,
                     "told to ranks that are refused");
    Add(app_, "undrain", "grant again", UndrainNode,
        "Examples:\n  sluicectl undrain");
  }

  CLI::App app_{"Shows and administers the node's Sluice daemon.", "sluicectl"};
  Flags flags_;
  bool json_is_first_ = false;
  Runner chosen_;
};

}  // namespace
}  // namespace sluice::ctl

int main(int argc, char** argv) {
  return sluice::ctl::CommandLine().Run(argc, argv);
}
