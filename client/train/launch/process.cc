#include "client/train/launch/process.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "absl/time/clock.h"
#include "proto/base/file_text.h"

namespace sluice::train {

std::vector<std::string> EnvironmentWith(
    const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (std::ranges::none_of(added, [&](const auto& variable) {
          return text.starts_with(variable.first + "=");
        })) {
      merged.push_back(text);
    }
  }
  for (const auto& [name, value] : added) merged.push_back(name + "=" + value);
  return merged;
}

std::optional<int> TryWait(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, WNOHANG) != pid) return std::nullopt;
  return status;
}

std::optional<int> WaitFor(pid_t pid, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    if (auto status = TryWait(pid)) return status;
    if (absl::Now() >= deadline) return std::nullopt;
    absl::SleepFor(absl::Milliseconds(5));
  }
}

void EndProcess(pid_t pid, absl::Duration grace) {
  kill(pid, SIGTERM);
  if (WaitFor(pid, grace)) return;
  kill(pid, SIGKILL);
  WaitFor(pid, absl::Seconds(10));
}

bool IsStopped(pid_t pid) {
  std::string state;
  ProcessStat(std::to_string(pid)) >> state;
  return state == "T" || state == "t";
}

std::string DescribeWaitStatus(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("signal {} ({})", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
  }
  return fmt::format("exit status {}", WEXITSTATUS(status));
}

std::string BinaryFolder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error)
      .parent_path()
      .string();
}

void DieWithParent(pid_t launcher) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have ended before prctl was called.
  if (getppid() != launcher) _exit(1);
}

}  // namespace sluice::train
