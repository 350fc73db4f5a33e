// sluiced-keeper: starts sluiced, holds its descriptors between two daemons,
// and starts it again.
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/keeper/daemon_process.h"
#include "daemon/keeper/notify_receiver.h"
#include "daemon/runtime/process.h"
#include "daemon/runtime/runtime_dir.h"
#include "daemon/store/starter.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/cli/cli.h"

namespace sluice::daemon {
namespace {

constexpr int64_t kDefaultDescriptors = 4096;

struct Arguments {
  std::string runtime_dir = "/run/sluice";
  std::string program;  // empty: the sluiced in the folder of this program
  std::optional<int64_t> max_descriptors;
  std::vector<std::string> daemon;
};

constexpr char kExamples[] = R"(Examples:
  sluiced-keeper                              in /run/sluice, with defaults
  sluiced-keeper --runtime-dir /tmp/s -- --config sluiced.toml
  sluiced-keeper --runtime-dir /tmp/s --max-descriptors 8000 -- --driver sim

Arguments after -- are sluiced's. SIGTERM and SIGINT end both programs; SIGHUP,
SIGUSR1 and SIGUSR2 are forwarded. If sluiced dies, or another process ends it,
it is started again with all that it had stored. If the keeper is killed,
sluiced serves on, and its sessions end with it. Exit status: sluiced's; 2 bad
input.)";

absl::StatusOr<int64_t> Capacity(std::optional<int64_t> asked) {
  Starter next;
  next.open_files = RaiseDescriptorLimit();
  const int64_t most = StoreCapacity(next, asked.value_or(kDefaultDescriptors));
  if (asked && (*asked < 1 || *asked > most)) {
    return absl::InvalidArgumentError(fmt::format(
        "--max-descriptors is {}, it must be from 1 to {} with this limit of "
        "open files ({}, ulimit -Hn)",
        *asked, StoreCapacity(next, 1 << 20), next.open_files));
  }
  return most;
}

absl::StatusOr<std::vector<std::string>> Command(const Arguments& arguments) {
  const std::string program =
      arguments.program.empty() ? Sibling("sluiced") : arguments.program;
  if (access(program.c_str(), X_OK) != 0) {
    return absl::InvalidArgumentError(
        fmt::format("cannot run {}: {} (choose another with --program)",
                    program, std::strerror(errno)));
  }
  std::vector<std::string> command = {program, "--runtime-dir",
                                      arguments.runtime_dir};
  command.insert(command.end(), arguments.daemon.begin(),
                 arguments.daemon.end());
  return command;
}

absl::Time Now() { return MonotonicClock().Now(); }

template <typename... Args>
void Log(fmt::format_string<Args...> text, Args&&... args) {
  Say(fmt::format(text, std::forward<Args>(args)...));
}

// Starts the daemon, keeps its descriptors, and restarts it. One thread handles
// messages, signals and the daemon's death. Messages come first, so that what a
// daemon sent before its death is kept.
class Keeper {
 public:
  Keeper(std::vector<std::string> command, int64_t capacity,
         NotifyReceiver receiver, UniqueFd signals)
      : command_(std::move(command)),
        receiver_(std::move(receiver)),
        signals_(std::move(signals)),
        kept_(capacity) {}

  // Runs until the daemon has ended for good. Returns the keeper's exit status.
  int Run() {
    while (true) {
      // An ending signal in the pause between two daemons ends the keeper.
      if (!daemon_ && asked_to_end_) return 0;
      if (!daemon_ && Now() >= start_at_) Start();
      ReapEnded();
      WaitForSomething();
      ReadMessages();
      ReadSignals();
      EndIfLate();
      if (!daemon_ || !daemon_->HasEnded()) continue;
      const auto status = OnDeath();
      if (!status) continue;
      ReapEnded();
      return *status;
    }
  }

 private:
  static constexpr int kMessagesPerTurn = 1024;
  // How long a daemon may take to end after an ending signal.
  static constexpr absl::Duration kPatience = absl::Seconds(5);

  void Start() {
    auto started = DaemonProcess::Start(command_, receiver_.path(), kept_);
    if (!started.ok()) {
      Log("{}", std::string(started.status().message()));
      start_at_ = Now() + RestartPolicy::kLongestPause;
      return;
    }
    daemon_ = *std::move(started);
    Log("started sluiced as process {} with {} descriptors", daemon_->pid(),
        kept_.all().size());
  }

  // Called after Start, because the next daemon must not wait for the reaping.
  void ReapEnded() {
    if (ended_) ended_->Reap();
    ended_.reset();
  }

  void WaitForSomething() {
    const absl::Time until = daemon_ ? kill_at_ : start_at_;
    const absl::Duration left =
        std::clamp(until - Now(), absl::ZeroDuration(), absl::Hours(1));
    const timespec timeout = absl::ToTimespec(left);
    std::array<pollfd, 3> polls = {{{receiver_.fd(), POLLIN, 0},
                                    {signals_.get(), POLLIN, 0},
                                    {daemon_ ? daemon_->fd() : -1, POLLIN, 0}}};
    ppoll(polls.data(), polls.size(), &timeout, nullptr);
  }

  // Reads a bounded number of messages, so that no sender can delay signals.
  void ReadMessages() {
    for (int i = 0; i < kMessagesPerTurn; ++i) {
      auto datagram = receiver_.Receive();
      if (!datagram) return;
      Take(*std::move(datagram));
    }
  }

  void Take(NotifyReceiver::Datagram datagram) {
    // Refuses messages of other processes. Comparing pids suffices: messages
    // are read before the process is reaped, and until then its pid is not
    // reused.
    if (!daemon_ || datagram.sender != daemon_->pid()) {
      return Refuse(
          fmt::format("process {} is not the daemon", datagram.sender));
    }
    if (!datagram.whole) return Refuse("it did not arrive whole");
    const auto said = ParseNotification(datagram.text);
    if (!said.ok()) return Refuse(std::string(said.status().message()));
    const absl::Status done = kept_.Apply(*said, std::move(datagram.fds));
    if (!done.ok()) Refuse(std::string(done.message()));
  }

  // Logs the 1st, 2nd, 4th, 8th … refusal, so that refusals cannot fill the
  // log.
  void Refuse(std::string_view why) {
    if (std::has_single_bit(++refused_)) {
      Log("refused a message: {} ({} so far)", why, refused_);
    }
  }

  void ReadSignals() {
    signalfd_siginfo got;
    while (read(signals_.get(), &got, sizeof(got)) == sizeof(got)) {
      const int signal = static_cast<int>(got.ssi_signo);
      const bool ends = IsEndingSignal(signal);
      if (ends) {
        asked_to_end_ = true;
        kill_at_ = std::min(kill_at_, Now() + kPatience);
      }
      if (daemon_) ends ? daemon_->EndService(signal) : daemon_->Signal(signal);
    }
  }

  void EndIfLate() {
    if (!daemon_ || Now() < kill_at_) return;
    Log("sluiced (process {}) did not end within {}: killed", daemon_->pid(),
        FormatSpan(kPatience));
    daemon_->KillGroup();
    kill_at_ = absl::InfiniteFuture();
  }

  std::optional<int> OnDeath() {
    ReadMessages();  // reads the ended daemon's last messages
    const DaemonEnd end = daemon_->End();
    const absl::Time now = Now();
    const auto verdict = policy_.Decide(
        end, {.asked = asked_to_end_, .holds = !kept_.all().empty()}, now);
    Log("sluiced (process {}) {}; {} descriptors are {}", daemon_->pid(),
        end.Text(), kept_.all().size(), verdict.exit ? "given up" : "held");
    ended_ = std::exchange(daemon_, std::nullopt);
    start_at_ = now + verdict.pause;
    if (verdict.slower_now) {
      Log("sluiced died {} times within {}: from now on it is started again "
          "after a pause of up to {}",
          RestartPolicy::kFreeDeaths + 1, FormatSpan(RestartPolicy::kWindow),
          FormatSpan(RestartPolicy::kLongestPause));
    }
    return verdict.exit;
  }

  const std::vector<std::string> command_;
  NotifyReceiver receiver_;
  const UniqueFd signals_;  // a signalfd
  KeptDescriptors kept_;
  RestartPolicy policy_;
  std::optional<DaemonProcess> daemon_;  // unset: none runs
  std::optional<DaemonProcess> ended_;   // the previous one, until it is reaped
  bool asked_to_end_ = false;
  absl::Time kill_at_ = absl::InfiniteFuture();
  absl::Time start_at_ = absl::InfinitePast();
  uint64_t refused_ = 0;
};

absl::StatusOr<int> Serve(const Arguments& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const int64_t capacity,
                          Capacity(arguments.max_descriptors));
  SLUICE_ASSIGN_OR_RETURN(std::vector<std::string> command, Command(arguments));
  // The lock is taken first, and so released last.
  SLUICE_ASSIGN_OR_RETURN(
      const RuntimeLock lock,
      RuntimeLock::Take(arguments.runtime_dir, {.file = "keeper.lock",
                                                .program = "sluiced-keeper",
                                                .locks_folder = false}));
  SLUICE_ASSIGN_OR_RETURN(
      NotifyReceiver receiver,
      NotifyReceiver::Bind(arguments.runtime_dir + "/keeper.sock"));
  BlockSignals();
  SLUICE_ASSIGN_OR_RETURN(UniqueFd signals, OpenSignals());
  return Keeper(std::move(command), capacity, std::move(receiver),
                std::move(signals))
      .Run();
}

int Fail(const absl::Status& status) {
  // fmt::print would throw if stderr is closed: the exit status would be lost.
  std::fputs(fmt::format("error: {}\n", std::string(status.message())).c_str(),
             stderr);
  return absl::IsInvalidArgument(status) || absl::IsAlreadyExists(status) ? 2
                                                                          : 1;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "sluiced-keeper: starts sluiced, holds its memory and its sockets while "
      "it is not there, and starts it again. For nodes without systemd.");
  app.add_option("--runtime-dir", arguments.runtime_dir,
                 "where the sockets of both programs are")
      ->capture_default_str();
  cli::AddCount(app, "--max-descriptors", arguments.max_descriptors,
                fmt::format("how many it holds at most (default: {}, or what "
                            "the limit of open files allows)",
                            kDefaultDescriptors));
  app.add_option("--program", arguments.program,
                 "the daemon (default: sluiced, beside this program)");
  app.add_option("sluiced arguments", arguments.daemon,
                 "after --, passed on unchanged");
  app.footer(kExamples);
  app.name("sluiced-keeper");
  const auto done = cli::Parse(app, {argv + 1, argv + argc});
  if (!done.ok()) return Fail(done.status());
  if (*done) return **done;
  const auto status = Serve(arguments);
  return status.ok() ? *status : Fail(status.status());
}

}  // namespace
}  // namespace sluice::daemon

int main(int argc, char** argv) { return sluice::daemon::Main(argc, argv); }
