// verify: checks whether Sluice can run on a GPU node, and archives the
// results.
#include <fmt/format.h>
#include <pwd.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "client/ctl/bundle/support_bundle.h"
#include "deploy/bundle/verify/check.h"
#include "deploy/bundle/verify/rules/probes.h"
#include "proto/base/file_text.h"
#include "proto/base/status.h"
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

std::string VersionOfTheKit() {
  const std::string told = TextOf(Beside("../version"));
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

// Keeps symbolic links, by which Python finds its virtual environment.
std::string Absolute(const std::string& path) {
  return path.empty() ? path : std::filesystem::absolute(path).string();
}

// Returns the names and folders to hide, with their replacements. Includes the
// folders of `python`'s environment and of the Python that the environment was
// made from, but not the system's, which identify no user.
using HiddenNames = std::vector<std::pair<std::string, std::string>>;
HiddenNames NamesToHide(const std::string& work, const std::string& python) {
  HiddenNames names = {{work, "WORK"}};
  std::error_code ignored;
  for (const std::filesystem::path& path :
       {std::filesystem::canonical(python, ignored),
        std::filesystem::path(Absolute(python))}) {
    const auto bin = path.parent_path();
    if (bin.filename() == "bin" && bin.parent_path().relative_path() != "" &&
        bin.parent_path() != "/usr") {
      names.emplace_back(bin.parent_path().string(), "PYTHON");
    }
  }
  names.emplace_back(std::filesystem::path(SelfPath()).parent_path().string(),
                     "BUNDLE");
  if (const char* home = std::getenv("HOME")) names.emplace_back(home, "HOME");
  names.emplace_back(std::filesystem::current_path(ignored).string(), "FOLDER");
  char host[HOST_NAME_MAX + 1] = {};
  if (gethostname(host, sizeof(host) - 1) == 0) {
    names.emplace_back(host, "NODE");
  }
  const passwd* const user = getpwuid(getuid());
  if (user != nullptr && user->pw_uid != 0) {
    names.emplace_back(user->pw_name, "USER");
  }
  return names;
}

// The archive has only the last bytes of a larger file.
constexpr size_t kMostOfAFile = 256 << 10;
// Shorter names are not hidden, because they occur in texts by chance.
constexpr size_t kLeastHidden = 3;

// Returns all files but scratch files; '-' stands for '/' in their names.
ctl::NamedTexts FilesBelow(const std::string& folder) {
  ctl::NamedTexts files;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder, error)) {
    if (!entry.is_regular_file(error)) continue;
    std::string name = entry.path().lexically_relative(folder).generic_string();
    if (name.starts_with(std::string(kScratch) + "/")) continue;
    std::replace(name.begin(), name.end(), '/', '-');
    std::string text = TextOf(entry.path().string());
    if (text.size() > kMostOfAFile) text.erase(0, text.size() - kMostOfAFile);
    files.emplace_back(name, text);
  }
  return files;
}

// While an object lives, SIGINT, SIGTERM and SIGHUP are only recorded. The
// destructor raises the recorded signal again. One object at a time.
class Interruption {
 public:
  Interruption() {
    struct sigaction note = {};
    note.sa_handler = [](int signal) { noted_ = signal; };
    note.sa_flags = SA_RESTART;
    for (size_t i = 0; i < kSignals.size(); ++i) {
      sigaction(kSignals[i], &note, &before_[i]);
      // A signal that was ignored (as under nohup) stays ignored.
      if (before_[i].sa_handler == SIG_IGN) {
        sigaction(kSignals[i], &before_[i], nullptr);
      }
    }
  }
  ~Interruption() {
    for (size_t i = 0; i < kSignals.size(); ++i) {
      sigaction(kSignals[i], &before_[i], nullptr);
    }
    if (came()) raise(noted_);
  }
  Interruption(const Interruption&) = delete;

  static bool came() { return noted_ != 0; }

 private:
  static constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};
  static inline std::atomic<int> noted_{0};
  static_assert(std::atomic<int>::is_always_lock_free);
  std::array<struct sigaction, kSignals.size()> before_;
};

bool Asked(const Options& options, const Check& check) {
  return (options.only.empty() ||
          absl::c_linear_search(options.only, check.name)) &&
         !absl::c_linear_search(options.skip, check.name);
}

// Runs the checks, and writes their results as JSON and as the archive to send
// back.
class Run {
 public:
  Run(const Options& options, const std::string& work)
      : options_(options),
        name_("sluice-verify-" +
              (options.name.empty()
                   ? "node-" + absl::FormatTime("%Y-%m-%d", absl::Now(),
                                                absl::UTCTimeZone())
                   : options.name)),
        hidden_(NamesToHide(work, options.python)),
        here_{.work = work,
              .python = Absolute(options.python),
              .limit = absl::Seconds(options.limit)} {}

  absl::Status All() {
    Survey();
    absl::Status written = Write();
    for (const Check& check : Checks()) {
      if (!Asked(options_, check)) continue;
      if (!written.ok()) return written;
      Say(check, "…", 0);
      Result result = One(check);
      result.name = check.name;
      Say(check, Name(result.status), result.seconds, result.reason);
      results_.push_back(std::move(result));
      written = Write();
    }
    return written;
  }

  std::string path() const {
    return fmt::format("{}/{}.tar.gz", options_.out, name_);
  }

  // Returns the status of all requested checks: failed if any failed, else
  // skipped if any was, or if there are none.
  Status status() const {
    Status whole = Status::kPassed;
    bool any = false;
    for (const Result& result : results_) {
      if (!result.asked) continue;
      any = true;
      if (result.status == Status::kFailed) return Status::kFailed;
      if (result.status == Status::kSkipped) whole = Status::kSkipped;
    }
    return any ? whole : Status::kSkipped;
  }

  std::string Json() const {
    json checks = json::array();
    for (const Result& result : results_) checks.push_back(ToJson(result));
    const json all = {{"version", VersionOfTheKit()},
                      {"status", Name(status())},
                      {"checks", std::move(checks)}};
    return Hide(all.dump(1, ' ', false, json::error_handler_t::replace)) + "\n";
  }

 private:
  std::string Hide(std::string text) const {
    for (const auto& [name, instead] : hidden_) {
      if (name.size() < kLeastHidden) continue;
      text = absl::StrReplaceAll(text, {{name, instead}});
    }
    return text;
  }

  // Replaces the archive after each check, in case the run is aborted.
  absl::Status Write() const {
    ctl::NamedTexts files = FilesBelow(here_.work);
    for (auto& [name, text] : files) text = Hide(std::move(text));
    files.emplace_back("report.json", Json());
    auto archive = ctl::MakeTarGz(name_, files);
    // Ctrl-C also ends gzip, so try once more.
    if (!archive.ok() && Interruption::came()) {
      archive = ctl::MakeTarGz(name_, files);
    }
    SLUICE_RETURN_IF_ERROR(archive.status());
    const std::string fresh = path() + ".new";
    std::ofstream file(fresh, std::ios::binary);
    file << *archive;
    file.close();
    if (!file || std::rename(fresh.c_str(), path().c_str()) != 0) {
      return ErrnoStatus(errno, "write " + path());
    }
    return absl::OkStatus();
  }

  void Survey() {
    const Result found =
        RunInProcess(*FindCheck("survey"), here_, Interruption::came);
    no_gpu_ = found.reason;
    if (found.status != Status::kPassed) return;
    here_.gpus = found.value["free"].get<std::vector<int>>();
    here_.busy = absl::StrJoin(
        found.value["busy"].get<std::vector<std::string>>(), "; ");
    if (here_.gpus.empty()) no_gpu_ = here_.busy;
  }

  Result One(const Check& check) const {
    if (Interruption::came()) return Skipped("interrupted before it");
    if (check.needs_python && here_.python.empty()) {
      Result result = Skipped("not asked for: it needs --python PATH");
      result.asked = false;
      return result;
    }
    if (check.needs_gpu && here_.gpus.empty()) {
      return Skipped("no GPU can be used: " + no_gpu_);
    }
    Result result = RunInProcess(check, here_, Interruption::came);
    // A check of all GPUs does not pass if busy GPUs were left out.
    if (check.needs_gpu && !check.needs_python && !here_.busy.empty() &&
        result.status == Status::kPassed) {
      result.status = Status::kSkipped;
      result.reason = "passed on the free GPUs; " + here_.busy;
    }
    return result;
  }

  void Say(const Check& check, const char* what, double seconds,
           const std::string& reason = "") const {
    std::string line = fmt::format("{:<12} {:<8}", check.name, what);
    line += seconds > 0 ? fmt::format("{:6.1f} s", seconds)
                        : fmt::format(" {}", check.what);
    if (!reason.empty()) line += "  " + Printable(reason);
    std::fprintf(stderr, "%s\n", line.c_str());
    std::fflush(stderr);
  }

  const Options& options_;
  const std::string name_;  // of the archive and of the folder in it
  const HiddenNames hidden_;
  Surroundings here_;  // of all checks
  std::vector<Result> results_;
  std::string no_gpu_;
};

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
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
  if (options.json) std::fputs(run.Json().c_str(), stdout);
  std::fprintf(stderr, "\n%s: %s is what to send back\n", Name(run.status()),
               run.path().c_str());
  std::fflush(nullptr);
  return ExitStatus(run.status());
}

// Runs the modes in which this program starts itself: as a check, as a probe of
// a driver rule, or as a rank that a check kills. Returns the exit status, or
// nullopt if the arguments are a user's.
std::optional<int> RunHidden(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return std::nullopt;
  if (arguments[0] == kBeACheck) return BeACheck(arguments);
  if (arguments[0] == "--probe" && arguments.size() == 2) {
    return AskRule(arguments[1]);
  }
  if (arguments[0] == kBeATenant) return BeATenant(arguments);
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
                 "name in place of `node` and the day, in the archive's name");
  app.add_option("--only", options.only, "run these checks alone")
      ->delimiter(',');
  app.add_option("--skip", options.skip, "leave out these checks")
      ->delimiter(',');
  app.add_flag("--json", options.json,
               "print the report on standard output too");
  app.add_option("--limit", options.limit,
                 "seconds per check, instead of each check's limit")
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
