#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "deploy/bundle/verify/check.h"
#include "proto/base/file_text.h"
#include "proto/base/pidfd.h"
#include "proto/base/spawn.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"

namespace sluice::verify {
namespace {

using nlohmann::json;

constexpr absl::Duration kDescendantsNap = absl::Milliseconds(5);
constexpr int kKillRounds = 1000;

// Returns the parent of `pid`, or 0 if the process `pid` has ended.
pid_t ParentOf(pid_t pid) {
  std::istringstream stat = ProcessStat(std::to_string(pid));
  char state = 0;
  pid_t parent = 0;
  return stat >> state >> parent && state != 'Z' ? parent : 0;
}

// The reading end of a pipe; the pipe closes when the parent ends.
constexpr int kWatched = 3;
constexpr int kSliceMs = 100;
// The number of tries to delete a folder in which files still appear.
constexpr int kRemovalRounds = 20;

std::string PathOf(const std::string& work, const char* check,
                   const char* end) {
  return work + "/" + check + end;
}

absl::StatusOr<pid_t> Start(const Check& check, const Surroundings& here,
                            const UniqueFd& log, const UniqueFd& watched,
                            absl::Duration limit) {
  const UniqueFd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing) return ErrnoStatus(errno, "open /dev/null");
  return Spawn(
      {SelfPath(), kBeACheck, check.name, "--work", here.work, "--gpus",
       absl::StrJoin(here.gpus, ","), "--busy", here.busy, "--python",
       here.python, "--limit", std::to_string(absl::ToInt64Seconds(limit))},
      {.files = {{nothing.get(), STDIN_FILENO},
                 {log.get(), STDOUT_FILENO},
                 {log.get(), STDERR_FILENO},
                 {watched.get(), kWatched}},
       .signals = SpawnOptions::Signals::kDefault,
       .own_group = true});
}

// Returns "" if the process ended, else why the wait was given up. Without a
// pidfd (no descriptor is free) the end is noticed after kSliceMs.
std::string Await(pid_t pid, absl::Duration limit, bool (*stopped)()) {
  const UniqueFd pidfd = PidfdOf(pid);
  const absl::Time deadline = absl::Now() + limit;
  while (true) {
    pollfd ended = {.fd = pidfd.get(), .events = POLLIN, .revents = 0};
    if (poll(&ended, 1, kSliceMs) == 1 || HasEnded(pid)) return "";
    if (stopped()) return "interrupted";
    if (absl::Now() >= deadline) {
      return fmt::format("did not end within {}", absl::FormatDuration(limit));
    }
  }
}

std::atomic<bool> starter_is_gone = false;

// Starts a thread that waits for the parent's end, then kills all descendants,
// deletes `work`, and kills this process's group.
void EndWithStarter(const std::string& work) {
  std::thread([work] {
    char none;
    while (read(kWatched, &none, 1) < 0 && errno == EINTR) {
    }
    starter_is_gone = true;
    for (int round = 0; round < kRemovalRounds; ++round) {
      EndDescendants();  // they may still create files
      std::error_code fault;
      std::filesystem::remove_all(work, fault);
      if (!fault && !std::filesystem::exists(work, fault)) break;
      absl::SleepFor(absl::Milliseconds(kSliceMs));
    }
    kill(0, SIGKILL);
  }).detach();
}

}  // namespace

std::string SelfPath() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

std::string Beside(const std::string& name) {
  return std::filesystem::path(SelfPath()).replace_filename(name).string();
}

void PrintLine(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

bool AwaitTrue(absl::Time until, absl::FunctionRef<bool()> done) {
  while (!done()) {
    if (absl::Now() >= until) return false;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

Result RunInProcess(const Check& check, const Surroundings& here,
                    bool (*stopped)()) {
  const absl::Time begin = absl::Now();
  const absl::Duration limit =
      here.limit > absl::ZeroDuration() ? here.limit : check.limit;
  const std::string log = PathOf(here.work, check.name, ".log");
  std::error_code ignored;
  std::filesystem::create_directories(PathOf(here.work, check.name, ""),
                                      ignored);
  const UniqueFd output(
      open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  int ends[2];
  if (!output || pipe2(ends, O_CLOEXEC) != 0) {
    return Failed({}, "the check runs", "its log or its pipe cannot be made");
  }
  const UniqueFd watched(ends[0]), held(ends[1]);
  AdoptOrphans();
  const auto pid = Start(check, here, output, watched, limit);
  if (!pid.ok()) return Failed({}, "the check runs", pid.status());
  std::string bad_end = Await(*pid, limit, stopped);
  // The log is read now, before killed processes add to it.
  const std::string last = LastLine(TextOf(log));
  kill(-*pid, SIGKILL);
  const std::string ended = Reap(*pid);
  EndDescendants();  // processes that the check left running
  if (bad_end.empty()) bad_end = ended;
  if (!bad_end.empty()) {
    bad_end = "the check's process " + bad_end +
              (last.empty() ? "" : "; it said last: " + last);
  }
  Result result = ReadResult(PathOf(here.work, check.name, ".json"), bad_end);
  result.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  return result;
}

// `arguments` are flags and values in turn, as `Start` passes them.
int BeACheck(const std::vector<std::string>& arguments) {
  std::map<std::string, std::string> given;
  for (size_t i = 0; i + 1 < arguments.size(); i += 2) {
    given[arguments[i]] = arguments[i + 1];
  }
  const Check* const check = FindCheck(given[kBeACheck]);
  int64_t limit = 0;
  if (check == nullptr || !absl::SimpleAtoi(given["--limit"], &limit)) return 2;
  const std::string& work = given["--work"];
  fcntl(kWatched, F_SETFD, FD_CLOEXEC);
  AdoptOrphans();
  EndWithStarter(work);
  // Temporary files of killed programs are deleted with the work folder.
  const std::string scratch = work + "/" + kScratch;
  std::error_code ignored;
  std::filesystem::create_directories(scratch, ignored);
  setenv("TMPDIR", scratch.c_str(), 1);
  Surroundings here = {.check = check->name,
                       .work = PathOf(work, check->name, ""),
                       .busy = given["--busy"],
                       .python = given["--python"],
                       .limit = absl::Seconds(limit)};
  for (const auto word :
       absl::StrSplit(given["--gpus"], ',', absl::SkipEmpty())) {
    int gpu = 0;
    if (absl::SimpleAtoi(word, &gpu)) here.gpus.push_back(gpu);
  }
  const Result result = check->run(here);
  // Nothing is written into a folder that is being deleted.
  while (starter_is_gone) pause();
  std::ofstream file(PathOf(work, check->name, ".json"));
  file << ToJson(result).dump(-1, ' ', false, json::error_handler_t::replace);
  file.close();
  return file ? 0 : 1;
}

std::vector<pid_t> Descendants(pid_t of) {
  std::multimap<pid_t, pid_t> children;
  std::error_code error;  // ignored: processes end during the scan
  for (std::filesystem::directory_iterator entry("/proc", error), end;
       !error && entry != end; entry.increment(error)) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry->path().filename().string(), &pid)) continue;
    if (const pid_t parent = ParentOf(pid); parent != 0) {
      children.emplace(parent, pid);
    }
  }
  std::vector<pid_t> found = {of};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto [begin, end] = children.equal_range(found[i]);
    for (auto it = begin; it != end; ++it) found.push_back(it->second);
  }
  found.erase(found.begin());
  return found;
}

bool HasEnded(pid_t child) {
  siginfo_t how = {};
  return waitid(P_PID, static_cast<id_t>(child), &how,
                WEXITED | WNOHANG | WNOWAIT) == 0 &&
         how.si_pid == child;
}

void AdoptOrphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

// Repeats the scan, because a keeper may have started another daemon.
void EndDescendants() {
  for (int round = 0; round < kKillRounds; ++round) {
    const std::vector<pid_t> left = Descendants(getpid());
    for (const pid_t pid : left) kill(pid, SIGKILL);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (left.empty()) return;
    absl::SleepFor(kDescendantsNap);
  }
}

std::string Reap(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    return fmt::format("ended by signal {} ({})", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
  }
  return WEXITSTATUS(status) == 0
             ? ""
             : fmt::format("ended with status {}", WEXITSTATUS(status));
}

}  // namespace sluice::verify
