// What signals bring about, and how a service ends.
#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "daemon/runtime/signals.h"
#include "daemon/service/log/log.h"
#include "daemon/service/service.h"

namespace sluice::daemon {
namespace {

// How long an end that leaves nothing waits for the store: a starter of another
// daemon gives up what is left after that.
constexpr absl::Duration kLongestForget = absl::Milliseconds(500);
// How long one waits that leaves ranks to the next daemon. All has been sent
// before; only whether it arrived is not known.
constexpr absl::Duration kLongestKeep = absl::Seconds(1);

}  // namespace

void Service::OnSignal() {
  signalfd_siginfo info;
  if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
  const int signal = static_cast<int>(info.ssi_signo);
  if (IsEndingSignal(signal)) {
    const bool service =
        info.ssi_code == SI_QUEUE && info.ssi_int == kEndsService;
    return End(service ? Ending::kOfService : Ending::kForRanks);
  }
  if (signal == SIGHUP) return OnReload();
  WriteLog(LogLevel::kWarning,
           fmt::format("SIG{} is ignored", sigabbrev_np(signal)));
}

void Service::OnReload() {
  if (options_.check.empty() || !handover_->saves()) {
    return WriteLog(
        LogLevel::kWarning,
        "SIGHUP: the configuration is read at the start only, since nobody "
        "keeps for another daemon what this one has: run it by systemd or "
        "sluiced-keeper, or restart it when no job runs");
  }
  WriteLog(LogLevel::kInfo, "SIGHUP: the configuration is being checked");
  reload_->Ask();
}

void Service::EndForReload(const absl::Status& checked) {
  if (!checked.ok()) {
    return WriteLog(LogLevel::kWarning,
                    fmt::format("the configuration stays as it was: {}",
                                std::string(checked.message())));
  }
  // Saving may have ended meanwhile.
  if (!handover_->saves()) return OnReload();
  WriteLog(LogLevel::kInfo,
           "the configuration is good: the next daemon reads it");
  End(Ending::kForAll);
}

void Service::End(Ending how) {
  reload_->Stop();
  loop_->Remove(signals_.get());
  listener_->Stop();
  // No request is read either: a client without an answer asks the next daemon.
  loop_->SetWork([] { return false; });
  snapshots_->Clear();
  // The starter starts the next daemon, or closes what is kept.
  leaving_ =
      handover_->saves() && (how == Ending::kForAll ||
                             (how == Ending::kForRanks && core_.has_ranks()));
  end_at_ = loop_->now() + (leaving_ ? kLongestKeep : kLongestForget);
  // What is on its way to the store must arrive there.
  if (leaving_) return handover_->WhenKept([this] { loop_->Stop(); });
  Execute(core_.ShutDown("sluiced was stopped", loop_->now()));
  // Clients that connect until then wait for the next daemon, if there is one.
  const bool kept = how != Ending::kOfService && handover_->saves();
  if (kept) listener_->LeavePath();
  handover_->LeaveNothing([this] { loop_->Stop(); }, /*listeners=*/kept);
}

}  // namespace sluice::daemon
