// sluicectl plan memory: addresses for a trace's tensors, and a lower bound.
#include "planner/memory/plan_memory.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "client/ctl/desk/plan_commands.h"
#include "client/ctl/text/format.h"
#include "client/ctl/text/output.h"
#include "planner/trace/read_trace.h"
#include "proto/base/mutex.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/cli/cli.h"

namespace sluice::ctl {
namespace {

using planner::MemoryPlan;
using planner::NamedTrace;
using Clock = std::chrono::steady_clock;

constexpr const char* kMemoryExamples = R"(Examples:
  sluicectl plan memory trace.csv                    peak, bound, proof
  sluicectl plan memory trace.csv -o plan.csv --svg plan.svg
  zcat run.pt.trace.json.gz | sluicectl plan memory - --device cuda:0
  sluicectl plan memory run.json --device cuda:0 --json
  sluicectl plan memory trace.csv --capacity 1021KiB  does it fit?
  sluicectl plan memory trace.csv --effort 20 --time-limit 600
                                                     look for longer
  generate | sluicectl plan memory - -o - > plan.csv

TRACE is a MiniMalloc CSV (id,lower,upper,size), a log of `malloc ID SIZE` and
`free ID`, a PyTorch profiler trace (profile_memory=True), or a rank's profile;
its content tells which. Of a gzip file give zcat's output. Exit status: 0
done; 2 bad input; 3 no plan within --capacity was found; 130 the best plan
when Ctrl-C came (a second one drops it); 1 a fault.)";

constexpr int64_t kMostEffort = 1'000'000;

struct MemoryFlags {
  std::string trace;
  std::string format;
  std::string device;
  double time_limit = 60;
  std::optional<Bytes> capacity;
  int64_t effort = 1;
  std::optional<Bytes> align;  // unset: the trace format's default
  std::string plan;
  std::string svg;
  bool json = false;
};

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

absl::Status CheckFlags(const MemoryFlags& flags) {
  if (!(flags.time_limit > 0 && flags.time_limit <= 86400)) {
    return absl::InvalidArgumentError(
        fmt::format("--time-limit {}: give seconds above 0 and up to 86400",
                    flags.time_limit));
  }
  if (flags.effort < 1 || flags.effort > kMostEffort) {
    return absl::InvalidArgumentError(
        fmt::format("--effort {}: give 1 (the usual work) to {} times that",
                    flags.effort, kMostEffort));
  }
  if (flags.json + (flags.plan == "-") + (flags.svg == "-") > 1) {
    return absl::InvalidArgumentError(
        "standard output can hold one of --json, -o - and --svg -: write the "
        "others to files");
  }
  if (!flags.plan.empty() && flags.plan != "-" && flags.plan == flags.svg) {
    return absl::InvalidArgumentError(fmt::format(
        "-o and --svg both name '{}': give each its own file", flags.plan));
  }
  // Checked before solving, which may take a minute.
  for (const std::string& path : {flags.plan, flags.svg}) {
    if (!path.empty()) SLUICE_RETURN_IF_ERROR(CheckOutput(path));
  }
  return absl::OkStatus();
}

absl::StatusOr<NamedTrace> ReadTraceOf(const MemoryFlags& flags) {
  const std::string name = Printable(flags.trace);
  planner::TraceOptions options = {
      .file = flags.trace == "-" ? "standard input" : name,
      .format = planner::TraceFormatOf(flags.format),
      .device = flags.device,
      .alignment = flags.align};
  if (!options.format && !flags.format.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("--format '{}': there are minimalloc, log, pytorch "
                    "and profile",
                    flags.format));
  }
  if (flags.trace == "-") {
    std::ios::sync_with_stdio(false);
    return planner::ReadTrace(std::cin, options);
  }
  std::error_code error;
  const auto status = std::filesystem::status(flags.trace, error);
  if (!std::filesystem::exists(status)) {
    return absl::NotFoundError(fmt::format(
        "there is no file '{}': name a trace, or - for standard input", name));
  }
  if (std::filesystem::is_directory(status)) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is a folder: name a trace in it", name));
  }
  std::ifstream in(flags.trace, std::ios::binary);
  if (!in) {
    return absl::InvalidArgumentError(
        fmt::format("cannot read '{}': check its permissions", name));
  }
  return planner::ReadTrace(in, options);
}

// Prints progress after the first 2 s: on a terminal one line that it
// overwrites, elsewhere a line every 2 s. A thread prints it, so that the shown
// time advances even if no better plan is found.
class ProgressLine {
 public:
  ProgressLine() : terminal_(isatty(STDERR_FILENO) == 1) {
    // The writer blocks all signals, so that Ctrl-C interrupts the search.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    writer_ = std::thread([this] { Write(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~ProgressLine() {
    {
      const MutexLock lock(mutex_);
      ended_ = true;
    }
    changed_.NotifyAll();
    writer_.join();
    if (shown_ && terminal_) std::fputs("\r\x1b[K", stderr);
  }
  ProgressLine(const ProgressLine&) = delete;

  void Show(const planner::MemoryProgress& progress) {
    const MutexLock lock(mutex_);
    if (!known_ || progress.peak < known_->peak) {
      known_ = progress;
      better_at_ = SecondsSince(start_);
    }
    known_->arm = progress.arm;
    known_->lower_bound = progress.lower_bound;
  }

 private:
  void Write() {
    const auto every = std::chrono::milliseconds(terminal_ ? 250 : 2000);
    auto due = Clock::now() + std::chrono::seconds(2);
    const MutexLock lock(mutex_);
    while (!ended_) {
      if (changed_.WaitUntil(mutex_, due)) continue;
      due = Clock::now() + every;
      shown_ = true;
      const std::string known =
          known_ ? fmt::format("{}: peak {} since {:.1f} s, at least {}",
                               known_->arm, Size(known_->peak.count()),
                               better_at_, Size(known_->lower_bound.count()))
                 : "no plan yet";
      const std::string text =
          fmt::format("{}{}, {:.1f} s{}", terminal_ ? "\r\x1b[K" : "", known,
                      SecondsSince(start_), terminal_ ? "" : "\n");
      std::fputs(text.c_str(), stderr);  // fmt::print throws if it is closed
    }
  }

  const Clock::time_point start_ = Clock::now();
  const bool terminal_;
  Mutex mutex_;
  CondVar changed_;
  std::optional<planner::MemoryProgress> known_ ABSL_GUARDED_BY(mutex_);
  double better_at_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool shown_ = false;  // set by the writer, and read after its end
  std::thread writer_;
};

// The first Ctrl-C only stops the search; the second Ctrl-C ends the process.
class Interrupt {
 public:
  Interrupt() {
    struct sigaction action = {};
    action.sa_handler = [](int) { came = true; };
    // Without SA_RESTART, so that the signal also ends waits.
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, &before_);
  }
  ~Interrupt() { sigaction(SIGINT, &before_, nullptr); }
  Interrupt(const Interrupt&) = delete;

  static inline std::atomic<bool> came = false;

 private:
  struct sigaction before_;
};

// Returns the path of sluice-worker beside this program, or "". CBC runs in
// sluice-worker, so that a crash of CBC does not end this process. Without
// sluice-worker, CBC proves no plan.
std::string MipProgram() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto worker = self.parent_path() / "sluice-worker";
  return access(worker.c_str(), X_OK) == 0 ? worker.string() : "";
}

absl::StatusOr<MemoryPlan> PlanOf(const MemoryFlags& flags,
                                  const NamedTrace& named,
                                  Clock::time_point start) {
  const std::string worker = MipProgram();
  const Interrupt interrupt;
  ProgressLine line;
  // Reading the trace has used a part of the time limit.
  const double left = std::max(flags.time_limit - SecondsSince(start), 0.01);
  return planner::PlanMemory(
      named.trace,
      {.time_limit = absl::Seconds(left),
       .stop = &Interrupt::came,
       .capacity = flags.capacity,
       .effort = flags.effort,
       .progress = [&](const auto& progress) { line.Show(progress); },
       .use_cbc = !worker.empty(),
       .mip_program = worker});
}

std::string MemoryJson(const MemoryPlan& plan, const NamedTrace& named,
                       const MemoryFlags& flags) {
  nlohmann::ordered_json json = {
      {"buffers", plan.offsets.size()},
      {"align_bytes", named.trace.alignment.count()},
      {"peak_bytes", plan.peak.count()},
      {"max_live_bytes", plan.max_live.count()},
      {"lower_bound_bytes", plan.lower_bound.count()},
      {"gap", plan.gap()},
      {"optimal", plan.optimal()},
      {"proved_by", plan.proved_by},
      {"method", plan.method},
      {"levels", plan.levels},
      {"stopped_by", plan.stopped_by},
      {"seconds", plan.seconds},
      {"valid", plan.valid}};
  if (flags.capacity) {
    json["fits"] = plan.fits ? nlohmann::ordered_json(*plan.fits) : nullptr;
  }
  return JsonLine(json);
}

std::string Exact(Bytes size) {
  return fmt::format("{} ({} bytes)", Size(size.count()), Count(size.count()));
}

std::string Proof(const MemoryPlan& plan) {
  if (!plan.optimal()) {
    return fmt::format("no proof that less is impossible; gap {:.3g} %",
                       100 * plan.gap());
  }
  const std::string by =
      plan.proved_by == "max_live" ? "that much is alive at once"
      : plan.proved_by == "search" ? "a search refuted everything below"
                                   : "CBC refuted everything below";
  return "optimal: " + by;
}

std::string MemoryText(const MemoryPlan& plan, const NamedTrace& named,
                       const MemoryFlags& flags) {
  // The lower bound counts padding that the last buffer of a plan may lack.
  const int64_t align = named.trace.alignment.count();
  const std::string rounded =
      align > 1 ? fmt::format(", of sizes rounded up to {}", align) : "";
  std::string text = fmt::format(
      "{} buffers ({}), planned in {} by {}{}\n"
      "  peak        {}\n"
      "  at least    {}{}\n"
      "  alive       {} at most at once\n"
      "  {}\n",
      Count(plan.offsets.size()), Printable(named.source), Span(plan.seconds),
      plan.method.empty() ? "nothing" : plan.method,
      plan.levels > 1 ? " on two levels" : "", Exact(plan.peak),
      Exact(plan.lower_bound), rounded, Exact(plan.max_live), Proof(plan));
  if (plan.stopped_by == "time") {
    text += "  stopped by --time-limit: more may be possible\n";
  }
  if (plan.stopped_by == "work") {
    text += fmt::format(
        "  stopped after its usual work{}: --effort {} looks for longer\n",
        flags.effort > 1 ? fmt::format(" x {}", flags.effort) : "",
        8 * flags.effort);
  }
  if (plan.stopped_by == "stopped") {
    text += fmt::format("  stopped by Ctrl-C after {}: more may be possible\n",
                        Span(plan.seconds));
  }
  if (flags.capacity) {
    text += fmt::format("  {} in --capacity {}\n",
                        !plan.fits   ? "no plan was found, nor refuted,"
                        : *plan.fits ? "fits"
                                     : "proved not to fit",
                        Exact(*flags.capacity));
  }
  return text;
}

absl::StatusOr<int> PlanMemory(const MemoryFlags& flags) {
  const Clock::time_point start = Clock::now();
  SLUICE_RETURN_IF_ERROR(CheckFlags(flags));
  SLUICE_ASSIGN_OR_RETURN(const NamedTrace named, ReadTraceOf(flags));
  for (const std::string& note : named.notes) {
    std::fputs(("note: " + note + "\n").c_str(), stderr);
  }
  SLUICE_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanOf(flags, named, start));
  if (!flags.plan.empty()) {
    SLUICE_RETURN_IF_ERROR(
        WriteOutput(flags.plan, planner::PlanCsv(named, plan.offsets)));
  }
  if (!flags.svg.empty()) {
    SLUICE_RETURN_IF_ERROR(WriteOutput(flags.svg, PlanSvg(named, plan)));
  }
  const std::string said = flags.json ? MemoryJson(plan, named, flags)
                                      : MemoryText(plan, named, flags);
  if (flags.plan == "-" || flags.svg == "-") {
    std::fputs(said.c_str(), stderr);
  } else {
    SLUICE_RETURN_IF_ERROR(WriteOutput("-", said));
  }
  if (plan.stopped_by == "stopped") return kInterrupted;
  return flags.capacity && !plan.fits.value_or(false) ? kDoesNotFit : 0;
}

}  // namespace

DeskCommand AddPlanMemory(CLI::App& plan) {
  auto flags = std::make_shared<MemoryFlags>();
  CLI::App* memory = plan.add_subcommand(
      "memory", "where every tensor of a trace goes, with a proof");
  memory->footer(kMemoryExamples);
  memory->add_option("TRACE", flags->trace, "the trace's file; -: stdin")
      ->required();
  memory
      ->add_option("--time-limit", flags->time_limit,
                   "seconds, reading included")
      ->capture_default_str();
  cli::AddSize(*memory, "--capacity", flags->capacity,
               "stop at the first plan within this size; says whether "
               "it fits");
  cli::AddCount(*memory, "--effort", flags->effort,
                "how many times the usual work, if that ends without a proof");
  cli::AddSize(*memory, "--align", flags->align,
               "alignment of offsets, a power of two (default: 1B for "
               "CSV, else 512B)");
  memory->add_option("-o,--output", flags->plan,
                     "write the plan: the trace's rows with offset; -: stdout");
  memory->add_option("--svg", flags->svg, "draw the plan; -: stdout");
  memory->add_option("--format", flags->format,
                     "minimalloc, log, pytorch or profile (default: by "
                     "the content)");
  memory->add_option("--device", flags->device,
                     "the device (cuda:0) or rank (0) to plan, if the trace "
                     "has several");
  memory->add_flag("--json", flags->json, "print one JSON object");
  return {memory, [flags] { return ExitStatus(PlanMemory(*flags)); }};
}

}  // namespace sluice::ctl
