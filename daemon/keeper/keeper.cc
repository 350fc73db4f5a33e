#include "daemon/keeper/keeper.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <csignal>
#include <utility>

#include "daemon/keeper/say.h"
#include "daemon/runtime/process.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::daemon {
namespace {

absl::Time Now() { return MonotonicClock().Now(); }

template <typename... Args>
void Log(fmt::format_string<Args...> text, Args&&... args) {
  Say(fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Keeper>> Keeper::Make(Options options) {
  SLUICE_ASSIGN_OR_RETURN(
      RuntimeLock lock,
      RuntimeLock::Take(options.runtime_dir, {.file = "keeper.lock",
                                              .program = "sluiced-keeper",
                                              .locks_folder = false}));
  SLUICE_ASSIGN_OR_RETURN(
      NotifyReceiver receiver,
      NotifyReceiver::Bind(options.runtime_dir + "/keeper.sock"));
  BlockSignals();
  SLUICE_ASSIGN_OR_RETURN(UniqueFd signals, OpenSignals());
  return std::unique_ptr<Keeper>(new Keeper(std::move(options), std::move(lock),
                                            std::move(receiver),
                                            std::move(signals)));
}

Keeper::Keeper(Options options, RuntimeLock lock, NotifyReceiver receiver,
               UniqueFd signals)
    : options_(std::move(options)),
      lock_(std::move(lock)),
      receiver_(std::move(receiver)),
      signals_(std::move(signals)),
      kept_(options_.capacity) {}

int Keeper::Run() {
  while (true) {
    // Ends during a pause between two daemons.
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

void Keeper::Start() {
  auto started = DaemonProcess::Start(options_.argv, receiver_.path(), kept_);
  if (!started.ok()) {
    Log("{}", std::string(started.status().message()));
    start_at_ = Now() + RestartPolicy::kLongestPause;
    return;
  }
  daemon_ = *std::move(started);
  Log("started sluiced as process {} with {} descriptors", daemon_->pid(),
      kept_.all().size());
}

// Called after the start of the next daemon, so that it need not wait for this.
void Keeper::ReapEnded() {
  if (ended_) ended_->Reap();
  ended_.reset();
}

void Keeper::WaitForSomething() {
  const absl::Time until = daemon_ ? kill_at_ : start_at_;
  const absl::Duration left =
      std::clamp(until - Now(), absl::ZeroDuration(), absl::Hours(1));
  const timespec timeout = absl::ToTimespec(left);
  std::array<pollfd, 3> polls = {{{receiver_.fd(), POLLIN, 0},
                                  {signals_.get(), POLLIN, 0},
                                  {daemon_ ? daemon_->fd() : -1, POLLIN, 0}}};
  ppoll(polls.data(), polls.size(), &timeout, nullptr);
}

// Reads a bounded number, so that an endless sender cannot delay signals.
void Keeper::ReadMessages() {
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    auto datagram = receiver_.Receive();
    if (!datagram) return;
    Take(*std::move(datagram));
  }
}

void Keeper::Take(NotifyReceiver::Datagram datagram) {
  // Refuses messages of other processes. Comparing pids suffices: a pid is not
  // reused before its process was reaped, and messages are read before that.
  if (!daemon_ || datagram.sender != daemon_->pid()) {
    return Refuse(fmt::format("process {} is not the daemon", datagram.sender));
  }
  if (!datagram.whole) return Refuse("it did not arrive whole");
  const auto said = ParseNotification(datagram.text);
  if (!said.ok()) return Refuse(std::string(said.status().message()));
  const absl::Status done = kept_.Apply(*said, std::move(datagram.fds));
  if (!done.ok()) Refuse(std::string(done.message()));
}

// Logs the 1st, 2nd, 4th, 8th … refusal, so that many refusals do not fill the
// log.
void Keeper::Refuse(std::string_view why) {
  if (std::has_single_bit(++refused_)) {
    Log("refused a message: {} ({} so far)", why, refused_);
  }
}

void Keeper::ReadSignals() {
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

void Keeper::EndIfLate() {
  if (!daemon_ || Now() < kill_at_) return;
  Log("sluiced (process {}) did not end within {}: killed", daemon_->pid(),
      FormatSpan(kPatience));
  daemon_->KillGroup();
  kill_at_ = absl::InfiniteFuture();
}

std::optional<int> Keeper::OnDeath() {
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

}  // namespace sluice::daemon
