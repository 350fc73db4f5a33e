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

// Returns 0 if the process has ended.
pid_t ParentOf(pid_t pid) {
  // "PID (NAME) STATE PARENT …", and NAME may contain any character.
  const std::string stat = TextOf("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  char state = 0;
  int parent = 0;
  if (name_end == std::string::npos ||
      std::sscanf(stat.c_str() + name_end + 1, " %c %d", &state, &parent) !=
          2 ||
      state == 'Z') {
    return 0;
  }
  return parent;
}

// Read end of a pipe that closes when the parent ends.
constexpr int kWatched = 3;
constexpr int kSliceMs = 100;
// Attempts to delete a folder in which files still appear.
constexpr int kRemovalRounds = 20;

std::string FolderOf(const std::string& work, const Check& check) {
  return work + "/" + check.name;
}
std::string ResultOf(const std::string& work, const Check& check) {
  return work + "/" + check.name + ".json";
}

absl::StatusOr<pid_t> Start(const CheckProcess& process, const UniqueFd& log,
                            const UniqueFd& watched, absl::Duration limit) {
  const UniqueFd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing) return ErrnoStatus(errno, "open /dev/null");
  return Spawn(
      {process.program, "--check", process.check->name, "--work", process.work,
       "--gpus", process.gpus, "--busy", process.busy, "--python",
       process.python, "--limit", std::to_string(absl::ToInt64Seconds(limit))},
      {.files = {{nothing.get(), STDIN_FILENO},
                 {log.get(), STDOUT_FILENO},
                 {log.get(), STDERR_FILENO},
                 {watched.get(), kWatched}},
       .signals = SpawnOptions::Signals::kDefault,
       .own_group = true});
}

// Returns "" if the process ended, else why the wait was given up. Without a
// pidfd (no descriptor is free) the end is noticed after a slice.
std::string Await(pid_t pid, absl::Duration limit,
                  const std::function<bool()>& stopped) {
  const UniqueFd pidfd = PidfdOf(pid);
  const absl::Time deadline = absl::Now() + limit;
  while (true) {
    pollfd ended = {.fd = pidfd.get(), .events = POLLIN, .revents = 0};
    if (poll(&ended, 1, kSliceMs) == 1 || HasEnded(pid)) return "";
    if (stopped && stopped()) return "interrupted";
    if (absl::Now() >= deadline) {
      return fmt::format("did not end within {}", absl::FormatDuration(limit));
    }
  }
}

Result ReadResult(const CheckProcess& process, const std::string& bad_end,
                  const std::string& last) {
  const json told =
      json::parse(TextOf(ResultOf(process.work, *process.check)), nullptr,
                  /*allow_exceptions=*/false);
  if (bad_end.empty()) return FromJson(told);
  return FromJson(told, "the check's process " + bad_end +
                            (last.empty() ? "" : "; it said last: " + last));
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

Result RunInProcess(const CheckProcess& process) {
  const absl::Time begin = absl::Now();
  const absl::Duration limit = process.limit.value_or(process.check->limit);
  const std::string log = FolderOf(process.work, *process.check) + ".log";
  std::error_code ignored;
  std::filesystem::create_directories(FolderOf(process.work, *process.check),
                                      ignored);
  const auto failed = [&](const std::string& why) {
    Result result = Failed({}, "the check runs", why);
    result.name = process.check->name;
    return result;
  };
  const UniqueFd output(
      open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  int ends[2];
  if (!output || pipe2(ends, O_CLOEXEC) != 0) {
    return failed("no log or no pipe for it");
  }
  const UniqueFd watched(ends[0]), held(ends[1]);
  AdoptOrphans();
  const auto pid = Start(process, output, watched, limit);
  if (!pid.ok()) return failed(std::string(pid.status().message()));
  std::string bad_end = Await(*pid, limit, process.stopped);
  // Read before the killed processes log more.
  const std::string last = LastLine(TextOf(log));
  kill(-*pid, SIGKILL);
  int status = 0;
  while (waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  EndDescendants();  // processes that the check left running
  if (bad_end.empty()) bad_end = HowItEnded(status);
  Result result = ReadResult(process, bad_end, last);
  result.name = process.check->name;
  result.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  return result;
}

int ServeCheck(const Check& check, const std::string& work,
               const std::string& gpus, Surroundings here) {
  fcntl(kWatched, F_SETFD, FD_CLOEXEC);
  AdoptOrphans();
  EndWithStarter(work);
  // Temporary files of killed programs are deleted with the work folder.
  const std::string scratch = work + "/" + kScratch;
  std::error_code ignored;
  std::filesystem::create_directories(scratch, ignored);
  setenv("TMPDIR", scratch.c_str(), 1);
  here.check = check.name;
  here.work = FolderOf(work, check);
  for (const auto word : absl::StrSplit(gpus, ',', absl::SkipEmpty())) {
    int gpu = 0;
    if (absl::SimpleAtoi(word, &gpu)) here.gpus.push_back(gpu);
  }
  const Result result = check.run(here);
  // Do not write into a folder that is being deleted.
  while (starter_is_gone) pause();
  std::ofstream file(ResultOf(work, check));
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

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("ended by signal {} ({})", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
  }
  return WEXITSTATUS(status) == 0
             ? ""
             : fmt::format("ended with status {}", WEXITSTATUS(status));
}

}  // namespace sluice::verify
