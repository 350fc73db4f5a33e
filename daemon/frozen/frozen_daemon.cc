#include "daemon/frozen/frozen_daemon.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "daemon/frozen/frozen_admin.h"
#include "daemon/runtime/signals.h"
#include "daemon/service/handover.h"
#include "daemon/service/log/log.h"
#include "daemon/service/service.h"
#include "proto/base/status.h"
#include "proto/frozen.h"

namespace sluice::daemon {
namespace {

// How long an end of the service waits for the descriptor store.
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
  loop_->SetTimer([this] { return NextDeadline(); }, [this] { Expire(); });
  SLUICE_ASSIGN_OR_RETURN(UniqueFd state, CopyOf(starter, Handover::kState));
  SLUICE_ASSIGN_OR_RETURN(
      admin_, ServeFrozenAdmin(options_.runtime_dir + "/admin.sock",
                               Frozen(options_.why), std::move(state),
                               NamesOf(starter)));
  store_->Ready("frozen: " + options_.why);
  return absl::OkStatus();
}

absl::Status FrozenDaemon::Listen() {
  const bool handed = static_cast<bool>(options_.listener);
  SLUICE_ASSIGN_OR_RETURN(
      UniqueFd socket, handed ? options_.listener.Duplicate()
                              : CopyOf(options_.starter, Handover::kListener));
  if (!socket) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(
      listener_,
      SessionListener::Of(
          {.path = options_.session_dir + "/session.sock",
           .loop = loop_.get(),
           .closer = &closer_,
           .accepted = [this](UniqueFd&) { return Frozen(options_.why); }},
          std::move(socket), /*stays=*/handed));
  listener_->Start();
  return absl::OkStatus();
}

void FrozenDaemon::OnSignal() {
  signalfd_siginfo info;
  if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
  const int signal = static_cast<int>(info.ssi_signo);
  const bool ends = IsEndingSignal(signal);
  if (ends && info.ssi_code == SI_QUEUE && info.ssi_int == kEndsService) {
    return EndService();
  }
  // SIGHUP: the starter starts it again, with what the file says now.
  if (ends || signal == SIGHUP) loop_->Stop();
}

// Ranks see their sockets end, which means that the service was stopped.
void FrozenDaemon::EndService() {
  service_ended_ = true;
  end_at_ = loop_->now() + kLongestForget;
  store_->RemoveAll();
  store_->Flush([this](absl::Status) { loop_->Stop(); });
}

absl::Time FrozenDaemon::NextDeadline() const {
  const absl::Time next = std::min(heartbeat_at_, end_at_);
  return listener_ ? std::min(next, listener_->deadline()) : next;
}

void FrozenDaemon::Expire() {
  if (end_at_ <= loop_->now()) return loop_->Stop();
  if (listener_) listener_->Expire(loop_->now());
  if (loop_->now() < heartbeat_at_) return;
  store_->Watchdog();
  heartbeat_at_ = loop_->now() + heartbeat_;
}

bool FrozenDaemon::Run() {
  loop_->Run();
  admin_.reset();
  if (service_ended_ && listener_) listener_->Remove();
  return service_ended_;
}

}  // namespace sluice::daemon
