#include "client/train/launch/launcher.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "absl/time/clock.h"
#include "client/train/launch/outcome.h"
#include "client/train/watch/rank_page.h"
#include "client/train/watch/watchdog.h"
#include "proto/base/clock.h"
#include "proto/base/file_text.h"
#include "proto/base/spawn.h"
#include "proto/base/status.h"
#include "proto/base/temporary_folder.h"
#include "proto/base/unique_fd.h"

namespace sluice::train {
namespace {

constexpr absl::Duration kGrace = absl::Seconds(2);
constexpr absl::Duration kLimit = absl::Seconds(4);

// Rank 0 inherits the socket, so no other process can take the port.
absl::StatusOr<UniqueFd> Listen(int& port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (!fd || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(fd.get(), 128) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size)) {
    return ErrnoStatus(errno, "listen on a free port of 127.0.0.1");
  }
  port = ntohs(address.sin_port);
  return fd;
}

struct RankProcess {
  int rank = 0;
  pid_t pid = -1;
  std::string result_file;
  std::unique_ptr<RankPage> page;
  std::optional<int> status;  // wait status; unset while the process runs
  std::optional<RankResult> result;
  bool ended_by_us = false;  // killed by us, at a time limit
  bool told_to_end = false;  // SIGTERM sent, because another rank failed

  bool IsVictim() const {
    const bool terminated =
        WIFSIGNALED(*status) && WTERMSIG(*status) == SIGTERM;
    return ended_by_us || (told_to_end && terminated) ||
           (result && result->caused_by_peer);
  }
  // Returns whether the result is valid: the exit status must match it.
  bool Spoke() const {
    return result.has_value() && WIFEXITED(*status) &&
           WEXITSTATUS(*status) == result->exit;
  }
};

class Ranks {
 public:
  // `gpus` has a place per rank; empty: each rank chooses its GPU.
  absl::Status Start(const RunOptions& options, const std::string& binary,
                     const std::vector<std::string>& arguments,
                     const std::string& socket, const std::string& folder,
                     const std::vector<GpuPlace>& gpus) {
    int port = 0;
    SLUICE_ASSIGN_OR_RETURN(const UniqueFd listener, Listen(port));
    if (options.command != Command::kProfile) {
      watchdog_.emplace(WatchLimits{options.late_after, options.end_after},
                        /*alone=*/false);
    }
    std::vector<std::string> words = {binary};
    words.insert(words.end(), arguments.begin(), arguments.end());
    for (int rank = 0; rank < options.ranks; ++rank) {
      RankProcess process;
      process.rank = rank;
      process.result_file = fmt::format("{}/rank{}.json", folder, rank);
      const std::string page = fmt::format("{}/rank{}.page", folder, rank);
      SLUICE_ASSIGN_OR_RETURN(process.page, RankPage::Open(page));
      std::vector<std::pair<std::string, std::string>> environment = {
          {"MASTER_ADDR", "127.0.0.1"},
          {"SLUICE_RESULT_FILE", process.result_file},
          {"SLUICE_PAGE_FILE", page}};
      const auto set = [&environment](const char* name, int64_t value) {
        environment.emplace_back(name, std::to_string(value));
      };
      for (const char* name : {"RANK", "LOCAL_RANK"}) set(name, rank);
      for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) {
        set(name, options.ranks);
      }
      set("MASTER_PORT", port);
      set("SLUICE_LAUNCHER_PID", getpid());
      if (!gpus.empty()) {
        set("SLUICE_GPU", gpus[rank].gpu);
        set("SLUICE_GPU_RANKS", gpus[rank].ranks);
        set("SLUICE_NUMA_RANKS", gpus[rank].numa_ranks);
      }
      SpawnOptions spawn;
      if (rank == 0) {
        spawn.files = {{listener.get(), listener.get()}};
        set("SLUICE_MASTER_FD", listener.get());
      }
      if (!socket.empty()) environment.emplace_back("SLUICE_SOCKET", socket);
      spawn.environment = EnvironmentWith(environment);
      // Spawns and never forks: a fork of a process that maps leased memory
      // would keep that memory, and torch's threads do not survive a fork.
      const auto pid = Spawn(words, spawn);
      if (!pid.ok()) {
        Signal(SIGKILL);
        for (RankProcess& p : processes_) WaitFor(p.pid, absl::Seconds(5));
        return pid.status();
      }
      process.pid = *pid;
      processes_.push_back(std::move(process));
    }
    return absl::OkStatus();
  }

  void Watch(const sigset_t& signals) {
    while (true) {
      Reap();
      const bool some_run = order_.size() < processes_.size();
      if (some_run) {
        EndOthers();
        Look(MonotonicSeconds());
      }
      // A terminal's Ctrl-C may have ended all ranks before it is handled here.
      const timespec wait{0, some_run ? 100'000'000 : 0};
      const int signal = sigtimedwait(&signals, nullptr, &wait);
      if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
        Forward(signal);
      } else if (!some_run && signal < 0) {
        return;
      }
    }
  }

  int Report(const RunOptions& options) const {
    if (!late_.empty()) {
      std::fprintf(stderr, "error: %s\n", late_.c_str());
      return kExitFault;
    }
    const bool interrupted = Interrupted();
    const RankProcess* cause = Cause();
    if (cause != nullptr && interrupted && WIFSIGNALED(*cause->status)) {
      std::fprintf(stderr,
                   "error: interrupted before the step's end; what was saved "
                   "before is whole\n");
      return kExitInterrupted;
    }
    if (cause == nullptr) {
      const auto& result = processes_[0].result;
      if (options.json && result) std::puts(result->report.c_str());
      return interrupted ? kExitInterrupted : kExitOk;
    }
    if (cause->Spoke() && options.json && !cause->result->report.empty()) {
      std::puts(cause->result->report.c_str());
    }
    std::fprintf(stderr, "error: %s\n", Blame(*cause).c_str());
    if (cause->Spoke()) return cause->result->exit;
    // The rank wrote no result, but its exit status may be an ExitCode
    // (outcome.h).
    const int own =
        WIFEXITED(*cause->status) ? WEXITSTATUS(*cause->status) : kExitFault;
    return own <= kExitOpenFiles ? own : kExitFault;
  }

 private:
  void Signal(int signal) {
    for (const RankProcess& p : processes_) {
      if (!p.status.has_value()) kill(p.pid, signal);
    }
  }

  void Kill() {
    for (RankProcess& p : processes_) p.ended_by_us |= !p.status.has_value();
    Signal(SIGKILL);
  }

  void Reap() {
    for (RankProcess& p : processes_) {
      if (p.status.has_value()) continue;
      p.status = WaitFor(p.pid, absl::ZeroDuration());
      if (!p.status.has_value()) continue;
      order_.push_back(&p);
      if (auto result = ReadResult(p.result_file); result.ok()) {
        p.result = *std::move(result);
      }
      if (*p.status != 0 && !failed_at_.has_value()) failed_at_ = absl::Now();
    }
  }

  void EndOthers() {
    if (!failed_at_.has_value()) return;
    const absl::Duration since = absl::Now() - *failed_at_;
    if (since > kGrace && !terminated_) {
      terminated_ = true;
      for (RankProcess& p : processes_) p.told_to_end = !p.status.has_value();
      Signal(SIGTERM);
    }
    if (since > kLimit) Kill();
  }

  // Prints which ranks are late. Ends the run if a rank is too late.
  void Look(double now_s) {
    if (!watchdog_.has_value() || now_s - looked_s_ < 0.5) return;
    looked_s_ = now_s;
    std::vector<WatchedRank> ranks;
    for (const RankProcess& p : processes_) {
      const bool ended = p.status.has_value();
      ranks.push_back(
          {p.rank, p.pid, ended, !ended && IsStopped(p.pid), p.page->Read()});
    }
    const WatchVerdict verdict = watchdog_->Look(ranks, now_s);
    // Clears the line that rank 0 rewrites on a terminal.
    const char* clear = isatty(STDERR_FILENO) == 1 ? "\r\033[K" : "";
    for (const std::string& note : verdict.notes) {
      std::fprintf(stderr, "%s%s\n", clear, note.c_str());
    }
    if (verdict.end.empty() || failed_at_.has_value()) return;
    late_ = verdict.end;
    if (*clear != '\0') std::fputc('\n', stderr);
    // Not SIGTERM: a stopped or hung rank does not handle it.
    Kill();
  }

  void Forward(int signal) {
    // A closing terminal may send SIGHUP several times.
    if (signal == SIGHUP && forwarded_ > 0) return;
    Signal(++forwarded_ == 1 ? signal : SIGKILL);
  }

  // Returns whether a signal, to this process or to a rank alone, is the reason
  // that the run ended early.
  bool Interrupted() const {
    return std::ranges::any_of(processes_, [this](const RankProcess& p) {
      // Without a result the rank was killed before it could catch signals, or
      // by a second signal.
      return p.result
                 ? p.result->interrupted
                 : forwarded_ > 0 && WIFSIGNALED(*p.status) && !p.ended_by_us;
    });
  }

  // Returns the first rank that failed for its own reason, else the first that
  // failed; null if none failed.
  const RankProcess* Cause() const {
    const RankProcess* first = nullptr;
    for (const RankProcess* p : order_) {
      if (*p->status == 0) continue;
      if (!p->IsVictim()) return p;
      if (first == nullptr) first = p;
    }
    return first;
  }

  std::string Blame(const RankProcess& p) const {
    if (p.Spoke()) {
      return processes_.size() == 1 || p.result->exit == kExitBadInput
                 ? p.result->message
                 : fmt::format("rank {}: {}", p.rank, p.result->message);
    }
    return fmt::format(
        "rank {} ended with {}{}", p.rank, DescribeWaitStatus(*p.status),
        processes_.size() > 1 ? "; the other ranks were ended too" : "");
  }

  std::vector<RankProcess> processes_;
  std::vector<const RankProcess*> order_;  // by end time, earliest first
  std::optional<Watchdog> watchdog_;
  double looked_s_ = 0;
  std::string late_;  // why the watchdog ended the run
  std::optional<absl::Time> failed_at_;
  int forwarded_ = 0;
  bool terminated_ = false;
};

sigset_t HeldSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int s : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&signals, s);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  // Under nohup SIGHUP is ignored, but a blocked SIGHUP would still arrive.
  if (hangup.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  return signals;
}

}  // namespace

void HoldSignals() {
  const sigset_t signals = HeldSignals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
}

int Launch(const RunOptions& options, const std::string& binary,
           const std::vector<std::string>& arguments, const std::string& socket,
           const std::vector<GpuPlace>& gpus) {
  auto folder = TemporaryFolder::Make("sluice-run");
  absl::Status status = folder.status();
  Ranks ranks;
  if (status.ok()) {
    status =
        ranks.Start(options, binary, arguments, socket, folder->path(), gpus);
  }
  if (!status.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
    return ExitCode(status);
  }
  ranks.Watch(HeldSignals());
  return ranks.Report(options);
}

std::vector<std::string> EnvironmentWith(
    const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    merged.emplace_back(*entry);
  }
  for (const auto& [name, value] : added) {
    const std::string assignment = name + "=";
    std::erase_if(merged, [&](const std::string& text) {
      return text.starts_with(assignment);
    });
    merged.push_back(assignment + value);
  }
  return merged;
}

std::optional<int> WaitFor(pid_t pid, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) != pid) {
    if (absl::Now() >= deadline) return std::nullopt;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return status;
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
