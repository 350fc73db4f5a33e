#include "deploy/bundle/verify/descendants.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "proto/base/file_text.h"

namespace sluice::verify {
namespace {

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

}  // namespace

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
