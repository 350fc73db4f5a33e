#include "daemon/frozen/frozen_daemon.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/runtime/signals.h"
#include "daemon/service/convert.h"
#include "daemon/service/handover.h"
#include "daemon/service/log/log.h"
#include "daemon/service/service.h"
#include "proto/base/status.h"
#include "proto/frozen.h"
#include "proto/wire.h"

namespace sluice::daemon {
namespace {

// For so long none is accepted, while sockets wait to be closed, or where none
// can be.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(5);
// How long an end of the service waits for who keeps what is kept.
constexpr absl::Duration kLongestForget = absl::Milliseconds(500);

std::vector<std::string> NamesOf(const Starter& starter) {
  std::vector<std::string> names;
  for (const auto& [name, fd] : starter.stored) names.push_back(name);
  return names;
}

absl::StatusOr<UniqueFd> CopyOf(const Starter& starter, const char* name) {
  const auto kept = starter.stored.find(name);
  if (kept == starter.stored.end()) return UniqueFd();
  return kept->second.Duplicate();
}

}  // namespace

absl::Status Frozen(const std::string& why) {
  return absl::FailedPreconditionError(
      fmt::format("{}: jobs keep what they hold and nothing is granted, since "
                  "{}",
                  wire::kFrozen, why));
}

absl::StatusOr<std::unique_ptr<FrozenDaemon>> FrozenDaemon::Start(
    Options options) {
  auto daemon =
      std::unique_ptr<FrozenDaemon>(new FrozenDaemon(std::move(options)));
  SLUICE_RETURN_IF_ERROR(daemon->Prepare());
  return daemon;
}

absl::Status FrozenDaemon::Prepare() {
  SLUICE_ASSIGN_OR_RETURN(loop_, Loop::Make(options_.clock));
  const Starter& starter = options_.starter;
  SLUICE_ASSIGN_OR_RETURN(
      store_,
      DescriptorStore::Start(
          {.notify_socket = starter.notify_socket,
           .keeper = starter.keeper,
           .capacity = Handover::CapacityOf(starter),
           .post = [this](std::function<void()> task) { loop_->Post(task); },
           .say =
               [](const std::string& text) {
                 WriteLog(LogLevel::kWarning, text);
               }},
          starter.stored));
  SLUICE_RETURN_IF_ERROR(Listen());
  SLUICE_ASSIGN_OR_RETURN(signals_, OpenSignals());
  loop_->Add(signals_.get(), EPOLLIN, [this](uint32_t) { OnSignal(); });
  if (starter.watchdog) {
    heartbeat_ = *starter.watchdog / 2;
    heartbeat_at_ = loop_->now() + heartbeat_;
  }
  loop_->SetTimer([this] { return std::min(heartbeat_at_, end_at_); },
                  [this] { Expire(); });
  SLUICE_ASSIGN_OR_RETURN(UniqueFd state, CopyOf(starter, Handover::kState));
  SLUICE_ASSIGN_OR_RETURN(
      admin_, FrozenAdmin::Serve(options_.runtime_dir + "/admin.sock",
                                 Frozen(options_.why), std::move(state),
                                 NamesOf(starter)));
  store_->Ready("frozen: " + options_.why);
  return absl::OkStatus();
}

absl::Status FrozenDaemon::Listen() {
  SLUICE_ASSIGN_OR_RETURN(listener_,
                          options_.listener
                              ? options_.listener.Duplicate()
                              : CopyOf(options_.starter, Handover::kListener));
  if (!listener_) return absl::OkStatus();
  if (fcntl(listener_.get(), F_SETFL, O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "prepare the session socket");
  }
  loop_->Add(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
  return absl::OkStatus();
}

// One per turn of the loop: signals and the heartbeat come between.
void FrozenDaemon::Accept() {
  if (closer_.sockets_waiting() >= Closer::kMostSockets) {
    return absl::SleepFor(kAcceptPause);
  }
  UniqueFd socket(
      accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket && errno != EAGAIN) return absl::SleepFor(kAcceptPause);
  if (!socket) return;
  wire::Send(socket.get(), ErrorPacket(RequestId(), Frozen(options_.why)))
      .IgnoreError();
  closer_.CloseSession(std::move(socket));
}

void FrozenDaemon::OnSignal() {
  signalfd_siginfo info;
  if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
  const int signal = static_cast<int>(info.ssi_signo);
  const bool ends = IsEndingSignal(signal);
  if (ends && info.ssi_code == SI_QUEUE && info.ssi_int == kEndsService) {
    return EndService();
  }
  // SIGHUP: whoever started it starts it again, with what the file says now.
  if (ends || signal == SIGHUP) loop_->Stop();
}

// Ranks see their sockets end, which means that the service was stopped.
void FrozenDaemon::EndService() {
  service_ended_ = true;
  end_at_ = loop_->now() + kLongestForget;
  store_->RemoveAll();
  store_->Flush([this](absl::Status) { loop_->Stop(); });
}

void FrozenDaemon::Expire() {
  if (end_at_ <= loop_->now()) return loop_->Stop();
  if (loop_->now() < heartbeat_at_) return;
  store_->Watchdog();
  heartbeat_at_ = loop_->now() + heartbeat_;
}

bool FrozenDaemon::Run() {
  loop_->Run();
  admin_.reset();
  // A socket that was handed on stays: its path is its maker's.
  if (service_ended_ && listener_ && !options_.listener) {
    unlink((options_.runtime_dir + "/session.sock").c_str());
  }
  return service_ended_;
}

}  // namespace sluice::daemon
