#include "daemon/keeper/keeper.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <csignal>
#include <utility>

#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

constexpr int kEnding[] = {SIGTERM, SIGINT, SIGQUIT};
constexpr int kHandedOn[] = {SIGHUP, SIGUSR1, SIGUSR2};

absl::Time Now() { return MonotonicClock().Now(); }

template <typename... Args>
void Log(fmt::format_string<Args...> text, Args&&... args) {
  fmt::print(stderr, "sluiced-keeper: {}\n",
             fmt::format(text, std::forward<Args>(args)...));
}

sigset_t SignalsOfKeeper() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (const int signal : kEnding) sigaddset(&set, signal);
  for (const int signal : kHandedOn) sigaddset(&set, signal);
  return set;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Keeper>> Keeper::Make(Options options) {
  SLUICE_ASSIGN_OR_RETURN(
      RuntimeLock lock,
      RuntimeLock::Take(options.runtime_dir,
                        {.file = "keeper.lock", .program = "sluiced-keeper"}));
  SLUICE_ASSIGN_OR_RETURN(
      NotifyReceiver receiver,
      NotifyReceiver::Bind(options.runtime_dir + "/keeper.sock"));
  const sigset_t taken = SignalsOfKeeper();
  sigset_t before;
  sigprocmask(SIG_BLOCK, &taken, &before);
  signal(SIGPIPE, SIG_IGN);  // of a log that nobody reads any more
  UniqueFd signals(signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return ErrnoStatus(errno, "make a signalfd");
  return std::unique_ptr<Keeper>(new Keeper(std::move(options), std::move(lock),
                                            std::move(receiver),
                                            std::move(signals), before));
}

Keeper::Keeper(Options options, RuntimeLock lock, NotifyReceiver receiver,
               UniqueFd signals, sigset_t mask_before)
    : options_(std::move(options)),
      lock_(std::move(lock)),
      receiver_(std::move(receiver)),
      signals_(std::move(signals)),
      command_{.argv = options_.argv,
               .notify_socket = receiver_.path(),
               .signals = mask_before},
      kept_(options_.capacity) {}

int Keeper::Run() {
  while (true) {
    if (daemon_ == 0 && asked_to_end_) return 0;  // during a pause
    if (daemon_ == 0 && Now() >= start_at_) Start();
    WaitForSomething();
    ReadMessages();
    ReadSignals();
    EndIfLate();
    if (!HasDied()) continue;
    if (const auto status = OnDeath()) return *status;
  }
}

void Keeper::Start() {
  const auto pid = StartDaemon(command_, kept_);
  if (!pid.ok()) {
    Log("{}", std::string(pid.status().message()));
    start_at_ = Now() + RestartPolicy::kLongestPause;
    return;
  }
  daemon_ = *pid;
  Log("started sluiced as process {} with {} descriptors", daemon_,
      kept_.all().size());
}

void Keeper::WaitForSomething() {
  const absl::Time until = daemon_ == 0 ? start_at_ : kill_at_;
  const absl::Duration left =
      std::clamp(until - Now(), absl::ZeroDuration(), absl::Hours(1));
  const timespec timeout = absl::ToTimespec(left);
  std::array<pollfd, 2> polls = {
      {{receiver_.fd(), POLLIN, 0}, {signals_.get(), POLLIN, 0}}};
  ppoll(polls.data(), polls.size(), &timeout, nullptr);
}

// Bounded, so that a sender without end cannot keep signals out.
void Keeper::ReadMessages() {
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    auto datagram = receiver_.Receive();
    if (!datagram) return;
    Take(*std::move(datagram));
  }
}

void Keeper::Take(NotifyReceiver::Datagram datagram) {
  // A pid is not used again before its process was waited for, and messages
  // are read before that: nobody else has this one.
  if (daemon_ == 0 || datagram.sender != daemon_) {
    return Refuse(fmt::format("process {} is not the daemon", datagram.sender));
  }
  if (!datagram.whole) return Refuse("it did not arrive whole");
  const auto said = ParseNotification(datagram.text);
  if (!said.ok()) return Refuse(std::string(said.status().message()));
  const absl::Status done = kept_.Apply(*said, std::move(datagram.fds));
  if (!done.ok()) Refuse(std::string(done.message()));
}

// The 1st, 2nd, 4th, 8th …: who sends many does not fill the log.
void Keeper::Refuse(std::string_view why) {
  if (std::has_single_bit(++refused_)) {
    Log("refused a message: {} ({} so far)", why, refused_);
  }
}

void Keeper::ReadSignals() {
  signalfd_siginfo got;
  while (read(signals_.get(), &got, sizeof(got)) == sizeof(got)) {
    const int signal = static_cast<int>(got.ssi_signo);
    if (signal == SIGCHLD) continue;
    if (std::ranges::find(kEnding, signal) != std::end(kEnding)) {
      asked_to_end_ = true;
      kill_at_ = std::min(kill_at_, Now() + options_.patience);
    }
    // It has not been waited for, so this is still its number.
    if (daemon_ != 0) kill(daemon_, signal);
  }
}

void Keeper::EndIfLate() {
  if (daemon_ == 0 || Now() < kill_at_) return;
  Log("sluiced (process {}) did not end within {}: killed", daemon_,
      absl::FormatDuration(options_.patience));
  kill(-daemon_, SIGKILL);
  kill_at_ = absl::InfiniteFuture();
}

bool Keeper::HasDied() const {
  siginfo_t info = {};
  return daemon_ != 0 &&
         waitid(P_PID, static_cast<id_t>(daemon_), &info,
                WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == daemon_;
}

std::optional<int> Keeper::OnDeath() {
  ReadMessages();           // what it sent last
  kill(-daemon_, SIGKILL);  // what it started must not outlive it
  int status = 0;
  waitpid(daemon_, &status, 0);
  const DaemonEnd end = {
      .exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0,
      .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0};
  const absl::Time now = Now();
  const auto verdict = policy_.Decide(
      end, {.asked = asked_to_end_, .holds = !kept_.all().empty()}, now);
  Log("sluiced (process {}) {}; {} descriptors are {}", daemon_, end.Text(),
      kept_.all().size(), verdict.exit ? "given up" : "held");
  daemon_ = 0;
  start_at_ = now + verdict.pause;
  if (verdict.slower_now) {
    Log("sluiced died {} times within {}: from now on it is started again "
        "after a pause of up to {}",
        RestartPolicy::kFreeDeaths + 1,
        absl::FormatDuration(RestartPolicy::kWindow),
        absl::FormatDuration(RestartPolicy::kLongestPause));
  }
  return verdict.exit;
}

}  // namespace sluice::daemon
