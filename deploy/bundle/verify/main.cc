// verify: checks whether Sluice can run on a GPU node, and archives the
// results.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "deploy/bundle/verify/check.h"
#include "deploy/bundle/verify/private_daemon.h"
#include "deploy/bundle/verify/report.h"
#include "deploy/bundle/verify/rules/probes.h"
#include "proto/base/file_text.h"
#include "proto/base/temporary_folder.h"
#include "proto/base/text.h"
#include "proto/cli/cli.h"

namespace sluice::verify {
namespace {

using nlohmann::json;

constexpr const char* kExamples = R"(Examples:
  ./verify                         all checks, at most ten minutes
  ./verify --out /tmp              the archive there
  ./verify --only doctor,rules     these alone
  ./verify --skip kernels --json   all others; the report on standard output
  ./verify --python ~/env/bin/python3   in your torch too, which stays as it is:
                                   at most thirteen minutes more

It needs NVIDIA's driver, and neither root, network nor Python. With --python it
has checks of torch too, in that Python. GPUs that somebody uses are left alone.
The archive sluice-verify-NAME.tar.gz is written again after each check: Ctrl-C
leaves what was done. It holds no host or user name and no path of yours; NAME
is `node` and the day unless you give --name.
Exit status: 0 all passed; 1 a check failed; 2 bad arguments; 3 none failed,
but some were skipped.)";

struct Options {
  std::string out = ".", name, python;
  std::vector<std::string> only, skip;
  bool json = false;
  int64_t limit = 0;  // seconds per check; 0: the table's limits
};

std::string SelfPath() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

std::string VersionOfTheKit() {
  const std::string told =
      TextOf(std::filesystem::path(SelfPath()).parent_path() / "../version");
  return told.empty() ? cli::Version() : std::string(FirstLine(told));
}

absl::Status Judge(const Options& options) {
  for (const auto* names : {&options.only, &options.skip}) {
    for (const std::string& name : *names) {
      if (name != "survey" && FindCheck(name) != nullptr) continue;
      std::vector<std::string> all;
      for (const Check& check : Checks()) all.emplace_back(check.name);
      return absl::InvalidArgumentError(
          fmt::format("there is no check '{}'; there are {}", Printable(name),
                      absl::StrJoin(all, ", ")));
    }
  }
  for (const std::string& name : options.only) {
    const Check* const check = FindCheck(name);
    if (check->needs_python && options.python.empty()) {
      return absl::InvalidArgumentError(fmt::format(
          "--only {}: it runs in your torch: add --python PATH", check->name));
    }
  }
  if (!options.python.empty() && access(options.python.c_str(), X_OK) != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "--python {}: there is no such program; `command -v python3` prints "
        "the path of yours",
        Printable(options.python)));
  }
  if (!std::filesystem::is_directory(options.out)) {
    return absl::InvalidArgumentError(
        fmt::format("--out {}: there is no such folder", options.out));
  }
  return absl::OkStatus();
}

// Does not resolve links: Python finds its virtual environment by their path.
std::string Absolute(const std::string& path) {
  return path.empty() ? path : std::filesystem::absolute(path).string();
}

// Returns the folders of this Python's environment (ENVIRONMENT/bin/python3)
// and of the Python that it was made from, without the system's, which identify
// no user.
std::vector<std::string> FoldersOf(const std::string& python) {
  std::vector<std::string> folders;
  std::error_code ignored;
  for (const std::filesystem::path& path :
       {std::filesystem::path(Absolute(python)),
        std::filesystem::canonical(python, ignored)}) {
    const auto bin = path.parent_path();
    if (bin.filename() == "bin" && bin.parent_path().relative_path() != "" &&
        bin.parent_path() != "/usr") {
      folders.push_back(bin.parent_path().string());
    }
  }
  return folders;
}

bool Asked(const Options& options, const Check& check) {
  const auto has = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), check.name) != names.end();
  };
  return (options.only.empty() || has(options.only)) && !has(options.skip);
}

class Run {
 public:
  Run(const Options& options, std::string work)
      : options_(options),
        work_(std::move(work)),
        report_({.path = fmt::format("{}/{}.tar.gz", options.out, Named()),
                 .name = Named(),
                 .version = VersionOfTheKit(),
                 .work = work_,
                 .hidden = Hidden()}) {}

  absl::Status All() {
    Survey();
    absl::Status written = report_.Write();
    for (const Check& check : Checks()) {
      if (!Asked(options_, check)) continue;
      if (!written.ok()) return written;
      Say(check, "…", 0);
      Result result = One(check);
      result.name = check.name;
      Say(check, Name(result.status), result.seconds, result.reason);
      report_.Add(std::move(result));
      written = report_.Write();
    }
    return written;
  }

  const Report& report() const { return report_; }
  std::string path() const {
    return fmt::format("{}/{}.tar.gz", options_.out, Named());
  }

 private:
  std::string Named() const {
    if (!options_.name.empty()) return "sluice-verify-" + options_.name;
    return "sluice-verify-node-" +
           absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
  }
  std::vector<std::pair<std::string, std::string>> Hidden() const {
    auto names = NamesOfThisMachine();
    for (const std::string& folder : FoldersOf(options_.python)) {
      names.insert(names.begin(), {folder, "PYTHON"});
    }
    names.insert(names.begin(), {work_, "WORK"});
    return names;
  }
  CheckProcess Process(const Check& check) const {
    CheckProcess process = {.program = SelfPath(),
                            .check = &check,
                            .work = work_,
                            .gpus = absl::StrJoin(free_, ","),
                            .busy = busy_,
                            .python = Absolute(options_.python),
                            .limit = {},
                            .stopped = Interruption::came};
    if (options_.limit > 0) process.limit = absl::Seconds(options_.limit);
    return process;
  }
  void Survey() {
    const Result found = RunInProcess(Process(*FindCheck("survey")));
    no_gpu_ = found.reason;
    if (found.status != Status::kPassed) return;
    free_ = found.value["free"].get<std::vector<int>>();
    busy_ = absl::StrJoin(found.value["busy"].get<std::vector<std::string>>(),
                          "; ");
    if (free_.empty()) no_gpu_ = busy_;
  }
  Result One(const Check& check) const {
    if (Interruption::came()) return Skipped("interrupted before it");
    if (check.needs_python && options_.python.empty()) {
      Result result = Skipped("not asked for: it needs --python PATH");
      result.asked = false;
      return result;
    }
    if (check.needs_gpu && free_.empty()) {
      return Skipped("no GPU can be used: " + no_gpu_);
    }
    Result result = RunInProcess(Process(check));
    // A check of all GPUs does not pass if busy ones were left out.
    if (check.needs_gpu && !check.needs_python && !busy_.empty() &&
        result.status == Status::kPassed) {
      result.status = Status::kSkipped;
      result.reason = "passed on the others; " + busy_;
    }
    return result;
  }
  void Say(const Check& check, const char* what, double seconds,
           const std::string& reason = "") const {
    std::string line = fmt::format("{:<12} {:<8}", check.name, what);
    line += seconds > 0 ? fmt::format("{:6.1f} s", seconds)
                        : fmt::format(" {}", check.what);
    if (!reason.empty()) line += "  " + Printable(reason);
    fmt::print(stderr, "{}\n", line);
    std::fflush(stderr);
  }

  const Options& options_;
  const std::string work_;
  Report report_;
  std::vector<int> free_;
  std::string busy_, no_gpu_;
};

int Fail(const absl::Status& status) {
  fmt::print(stderr, "error: {}\n", std::string(status.message()));
  return 2;
}

int ExitStatus(Status status) {
  return status == Status::kPassed ? 0 : status == Status::kFailed ? 1 : 3;
}

int Verify(const Options& options) {
  if (const absl::Status wrong = Judge(options); !wrong.ok()) {
    return Fail(wrong);
  }
  const Interruption interruption;
  const auto work = TemporaryFolder::Make("sluice-verify");
  if (!work.ok()) return Fail(work.status());
  Run run(options, work->path());
  if (const absl::Status done = run.All(); !done.ok()) return Fail(done);
  if (options.json) std::fputs(run.report().Json().c_str(), stdout);
  fmt::print(stderr, "\n{}: {} is what to send back\n",
             Name(run.report().status()), run.path());
  std::fflush(nullptr);
  return ExitStatus(run.report().status());
}

// `arguments`: flags and values in turn, as RunInProcess passes them.
int BeACheck(const std::vector<std::string>& arguments) {
  std::map<std::string, std::string> given;
  for (size_t i = 0; i + 1 < arguments.size(); i += 2) {
    given[arguments[i]] = arguments[i + 1];
  }
  const Check* const check = FindCheck(given["--check"]);
  int64_t limit = 0;
  if (check == nullptr || !absl::SimpleAtoi(given["--limit"], &limit)) return 2;
  return ServeCheck(*check, given["--work"], given["--gpus"],
                    {.busy = given["--busy"],
                     .python = given["--python"],
                     .limit = absl::Seconds(limit)});
}

// Runs the modes in which this program starts itself: as a check, as a probe of
// a driver rule, or as a rank that a check kills. Returns the exit status, or
// nullopt if the arguments are a user's.
std::optional<int> RunHidden(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return std::nullopt;
  if (arguments[0] == "--check") return BeACheck(arguments);
  if (arguments[0] == "--probe" && arguments.size() == 2) {
    return AskRule(arguments[1]);
  }
  if (arguments[0] == kBeATenant) {
    return BeATenant({arguments.begin() + 1, arguments.end()});
  }
  return std::nullopt;
}

int Main(const std::vector<std::string>& arguments) {
  if (const auto hidden = RunHidden(arguments)) return *hidden;
  Options options;
  CLI::App app("Asks a GPU node whether Sluice can run on it", "verify");
  app.footer(kExamples);
  app.add_option("--out", options.out, "the archive's folder")
      ->capture_default_str();
  app.add_option("--name", options.name,
                 "instead of `node` and the day, in the archive's name");
  app.add_option("--only", options.only, "these checks alone")->delimiter(',');
  app.add_option("--skip", options.skip, "not these")->delimiter(',');
  app.add_flag("--json", options.json, "the report on standard output too");
  app.add_option("--limit", options.limit,
                 "seconds per check, instead of each one's own")
      ->check(CLI::Range(1, 3600));
  app.add_option("--python", options.python,
                 "a Python with torch, for the checks of torch");
  const auto parsed = cli::Parse(app, arguments);
  if (!parsed.ok()) return Fail(parsed.status());
  if (*parsed) return **parsed;
  return Verify(options);
}

}  // namespace
}  // namespace sluice::verify

int main(int argc, char** argv) {
  return sluice::verify::Main({argv + 1, argv + argc});
}
