#include "daemon/frozen/frozen_daemon.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "daemon/runtime/process.h"
#include "daemon/service/takeover/handover.h"
#include "proto/admin/admin.grpc.pb.h"
#include "proto/base/status.h"
#include "proto/base/whole_io.h"
#include "proto/wire.h"

namespace sluice::daemon {
namespace {

constexpr absl::Duration kLongestForget = absl::Milliseconds(500);

absl::StatusOr<std::string> BytesOf(const UniqueFd& file) {
  struct stat of;
  if (fstat(file.get(), &of) != 0) return ErrnoStatus(errno, "see the state");
  return ReadAllAt(file.get(), static_cast<size_t>(of.st_size), "the state");
}

// Answers ShowState, so that another version can check whether it could take
// over (`sluiced --check-state`). Refuses all other calls.
struct FrozenAdmin final : admin::Admin::Service {
  FrozenAdmin(const absl::Status& frozen, const Starter& kept)
      : why(ToGrpc(frozen)), starter(kept) {}
  using Context = grpc::ServerContext;
  grpc::Status ShowState(Context*, const admin::ShowStateRequest*,
                         admin::ShowStateReply* reply) override {
    const auto state = starter.stored.find(Handover::kState);
    if (state == starter.stored.end()) return why;
    auto bytes = BytesOf(state->second);
    if (!bytes.ok()) return ToGrpc(bytes.status());
    reply->set_file(*std::move(bytes));
    for (const auto& [name, fd] : starter.stored) reply->add_kept(name);
    return grpc::Status::OK;
  }

#define SLUICE_ANSWERS_WHY(Rpc)                                              \
  grpc::Status Rpc(Context*, const admin::Rpc##Request*, admin::Rpc##Reply*) \
      override {                                                             \
    return why;                                                              \
  }
  SLUICE_ANSWERS_WHY(Status)
  SLUICE_ANSWERS_WHY(SetBudget)
  SLUICE_ANSWERS_WHY(Reserve)
  SLUICE_ANSWERS_WHY(Drain)
  SLUICE_ANSWERS_WHY(Undrain)
  SLUICE_ANSWERS_WHY(KeepLinks)
  SLUICE_ANSWERS_WHY(ForgetLinks)
  SLUICE_ANSWERS_WHY(Evict)
#undef SLUICE_ANSWERS_WHY

  const grpc::Status why;
  const Starter& starter;
};

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
  SLUICE_ASSIGN_OR_RETURN(store_, Handover::OpenStore(starter, loop_.get()));
  SLUICE_RETURN_IF_ERROR(Listen());
  SLUICE_ASSIGN_OR_RETURN(signals_, OpenSignals());
  loop_->Add(signals_.get(), EPOLLIN, [this](uint32_t) { OnSignal(); });
  heartbeat_ = starter.watchdog.value_or(absl::InfiniteDuration()) / 2;
  heartbeat_at_ = loop_->now() + heartbeat_;
  loop_->SetTimer([this] { return NextDeadline(); }, [this] { Expire(); });
  SLUICE_ASSIGN_OR_RETURN(
      admin_, AdminSocket::Serve(
                  options_.runtime_dir + "/admin.sock",
                  std::make_unique<FrozenAdmin>(Frozen(options_.why), starter),
                  NoAdminSocket::kIsTriedAgain));
  store_->Ready("frozen: " + options_.why);
  return absl::OkStatus();
}

absl::Status FrozenDaemon::Listen() {
  const auto& stored = options_.starter.stored;
  const auto kept = stored.find(Handover::kListener);
  const bool handed = static_cast<bool>(options_.listener);
  if (!handed && kept == stored.end()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(
      UniqueFd socket, (handed ? options_.listener : kept->second).Duplicate());
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
  const auto signal = static_cast<int>(info.ssi_signo);
  const bool ends = IsEndingSignal(signal);
  if (!ends || info.ssi_code != SI_QUEUE || info.ssi_int != kEndsService) {
    // SIGHUP ends this daemon too: the next one reads the configuration.
    return ends || signal == SIGHUP ? loop_->Stop() : void();
  }
  // The service ends, so ranks must see their sockets close.
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
