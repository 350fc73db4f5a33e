#include "client/train/launch/launcher.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "absl/time/clock.h"
#include "client/train/launch/outcome.h"
#include "client/train/launch/process.h"
#include "client/train/rank.h"
#include "client/train/result.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"

namespace sluice::train {
namespace {

// A listening socket on a free port. Rank 0 takes it over, so nobody can
// take the port in between.
struct Listener {
  UniqueFd fd;
  int port = 0;
};

absl::StatusOr<Listener> Listen() {
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
  return Listener{std::move(fd), ntohs(address.sin_port)};
}

struct RankProcess {
  int rank = 0;
  pid_t pid = -1;
  std::string result_file;
  std::optional<int> status;  // wait status, once it ended
  bool ended_by_us = false;   // by SIGKILL at the time limit
};

// The ranks of one run and what happened to them.
class Ranks {
 public:
  absl::Status Start(const RunOptions& options, const std::string& binary,
                     const std::vector<std::string>& arguments,
                     const std::string& socket, const std::string& folder);
  // Until every rank has ended.
  void Watch(const sigset_t& signals);
  int Report(const RunOptions& options) const;

 private:
  void Reap();
  void EndOthers();
  void Forward(int signal);
  void Signal(int signal);
  bool running() const;
  bool Interrupted() const;
  const RankProcess* Cause() const;
  std::string Blame(const RankProcess& process) const;

  std::vector<RankProcess> processes_;
  std::vector<size_t> order_;  // of ending
  std::optional<absl::Time> failed_at_;
  int forwarded_ = 0;
  bool terminated_ = false;
};

absl::Status Ranks::Start(const RunOptions& options, const std::string& binary,
                          const std::vector<std::string>& arguments,
                          const std::string& socket,
                          const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(const Listener listener, Listen());
  const std::string world = std::to_string(options.ranks);
  for (int rank = 0; rank < options.ranks; ++rank) {
    RankProcess process;
    process.rank = rank;
    process.result_file = fmt::format("{}/rank{}.json", folder, rank);
    SpawnOptions spawn;
    spawn.argv = {binary};
    spawn.argv.insert(spawn.argv.end(), arguments.begin(), arguments.end());
    spawn.environment = {{"RANK", std::to_string(rank)},
                         {"WORLD_SIZE", world},
                         {"LOCAL_RANK", std::to_string(rank)},
                         {"LOCAL_WORLD_SIZE", world},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", std::to_string(listener.port)},
                         {"SLUICE_RESULT_FILE", process.result_file},
                         {"SLUICE_LAUNCHER_PID", std::to_string(getpid())}};
    if (rank == 0) {
      spawn.inherited_fd = listener.fd.get();
      spawn.environment.push_back(
          {"SLUICE_MASTER_FD", std::to_string(listener.fd.get())});
    }
    if (!socket.empty()) spawn.environment.push_back({"SLUICE_SOCKET", socket});
    auto pid = Spawn(spawn);
    if (!pid.ok()) {
      Signal(SIGKILL);
      for (RankProcess& p : processes_) WaitFor(p.pid, absl::Seconds(5));
      return pid.status();
    }
    process.pid = *pid;
    processes_.push_back(process);
  }
  return absl::OkStatus();
}

bool Ranks::running() const { return order_.size() < processes_.size(); }

void Ranks::Signal(int signal) {
  for (const RankProcess& p : processes_) {
    if (!p.status.has_value()) kill(p.pid, signal);
  }
}

void Ranks::Reap() {
  for (size_t i = 0; i < processes_.size(); ++i) {
    RankProcess& p = processes_[i];
    if (p.status.has_value()) continue;
    p.status = TryWait(p.pid);
    if (!p.status.has_value()) continue;
    order_.push_back(i);
    if (*p.status != 0 && !failed_at_.has_value()) failed_at_ = absl::Now();
  }
}

// Once one rank failed, the rest has to go too.
void Ranks::EndOthers() {
  if (!failed_at_.has_value()) return;
  const absl::Duration since = absl::Now() - *failed_at_;
  if (since > kGrace && !terminated_) {
    terminated_ = true;
    Signal(SIGTERM);
  }
  if (since > kLimit) {
    for (RankProcess& p : processes_) p.ended_by_us |= !p.status.has_value();
    Signal(SIGKILL);
  }
}

void Ranks::Forward(int signal) {
  // A closing terminal may send several.
  if (signal == SIGHUP && forwarded_ > 0) return;
  Signal(++forwarded_ == 1 ? signal : SIGKILL);
}

void Ranks::Watch(const sigset_t& signals) {
  while (true) {
    Reap();
    if (!running()) return;
    EndOthers();
    const timespec wait{0, 100'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &wait);
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
      Forward(signal);
    }
  }
}

// What was forwarded is why the run has not reached its end.
bool Ranks::Interrupted() const {
  if (forwarded_ == 0) return false;
  for (const RankProcess& p : processes_) {
    const auto result = ReadResult(p.result_file);
    if (result.ok() && result->interrupted) return true;
    // Before it could catch signals, or by a second one.
    if (!result.ok() && WIFSIGNALED(*p.status) && !p.ended_by_us) return true;
  }
  return false;
}

// The first rank that ended badly and not because of another.
const RankProcess* Ranks::Cause() const {
  const RankProcess* first = nullptr;
  for (const size_t i : order_) {
    const RankProcess& p = processes_[i];
    if (*p.status == 0) continue;
    if (first == nullptr) first = &p;
    const auto result = ReadResult(p.result_file);
    const bool victim =
        p.ended_by_us || (result.ok() && result->caused_by_peer);
    if (!victim) return &p;
  }
  return first;
}

std::string Ranks::Blame(const RankProcess& p) const {
  const auto result = ReadResult(p.result_file);
  if (WIFEXITED(*p.status) && result.ok()) {
    return processes_.size() == 1 || result->exit == kExitBadInput
               ? result->message
               : fmt::format("rank {}: {}", p.rank, result->message);
  }
  return fmt::format(
      "rank {} ended with {}{}", p.rank, DescribeWaitStatus(*p.status),
      processes_.size() > 1 ? "; the other ranks were ended too" : "");
}

int Ranks::Report(const RunOptions& options) const {
  const bool interrupted = Interrupted();
  const RankProcess* cause = Cause();
  if (cause != nullptr && interrupted && WIFSIGNALED(*cause->status)) {
    std::fprintf(stderr,
                 "error: interrupted before the step's end; what was saved "
                 "before is whole\n");
    return kExitInterrupted;
  }
  if (cause == nullptr) {
    const auto result = ReadResult(processes_[0].result_file);
    if (options.json && result.ok()) std::puts(result->report.c_str());
    return interrupted ? kExitInterrupted : kExitOk;
  }
  const auto result = ReadResult(cause->result_file);
  const bool spoke = WIFEXITED(*cause->status) && result.ok();
  if (spoke && options.json && !result->report.empty()) {
    std::puts(result->report.c_str());
  }
  std::fprintf(stderr, "error: %s\n", Blame(*cause).c_str());
  return spoke ? result->exit : kExitFault;
}

sigset_t HeldSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int s : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&signals, s);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  // Under nohup it is ignored; held, it would arrive all the same.
  if (hangup.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  return signals;
}

}  // namespace

void HoldSignals() {
  const sigset_t signals = HeldSignals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
}

int Launch(const RunOptions& options, const std::string& binary,
           const std::vector<std::string>& arguments,
           const std::string& socket) {
  auto folder = TemporaryFolder::Make("sluice-run");
  absl::Status status = folder.status();
  Ranks ranks;
  if (status.ok()) {
    status = ranks.Start(options, binary, arguments, socket, folder->path());
  }
  if (!status.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
    return ExitCode(status);
  }
  ranks.Watch(HeldSignals());
  return ranks.Report(options);
}

}  // namespace sluice::train
