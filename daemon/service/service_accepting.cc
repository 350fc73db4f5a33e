// The session socket: whose it is, and who is accepted.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "daemon/service/identity/peer.h"
#include "daemon/service/log/log.h"
#include "daemon/service/service.h"
#include "daemon/store/handed_listener.h"
#include "proto/base/status.h"
#include "proto/wire.h"

namespace sluice::daemon {
namespace {

// Each costs some 0.1 ms of the loop.
constexpr int kAcceptsPerWakeup = 8;
constexpr absl::Duration kAcceptPause = absl::Milliseconds(5);

}  // namespace

// Whoever connects while there is no daemon waits on a socket that was handed
// on or kept.
absl::Status Service::Listen() {
  UniqueFd kept = handover_->Take(Handover::kListener);
  if (options_.listener) {
    UseHanded(std::move(kept));
  } else {
    SLUICE_RETURN_IF_ERROR(UseOwn(std::move(kept)));
  }
  if (fcntl(listener_.get(), F_SETFL, O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "prepare the session socket");
  }
  return absl::OkStatus();
}

// The path of a socket that was handed on is its maker's: it is never made or
// removed here.
void Service::UseHanded(UniqueFd kept) {
  listener_ = std::move(options_.listener);
  listener_stays_ = true;
  if (access(options_.socket.c_str(), F_OK) != 0) {
    WriteLog(LogLevel::kError,
             fmt::format("nobody can connect, since {} was removed under who "
                         "made it: systemctl stop sluiced.socket, and "
                         "systemctl restart sluiced makes both again",
                         options_.socket));
  }
  if (!kept || IsSameSocket(kept, listener_)) return;
  // An earlier daemon made one of its own, where none was handed on.
  handover_->Drop(Handover::kListener);
  earlier_listener_ = std::move(kept);
}

absl::Status Service::UseOwn(UniqueFd kept) {
  listener_ = std::move(kept);
  const bool reached = access(options_.socket.c_str(), F_OK) == 0;
  if (listener_ && !reached) {
    handover_->DropSocket(Handover::kListener, std::move(listener_));
  }
  if (!listener_) {
    SLUICE_ASSIGN_OR_RETURN(
        listener_, wire::Listen(options_.socket, options_.socket_mode));
  }
  return absl::OkStatus();
}

// Nobody else can connect to the earlier listener, since another one is at its
// path: this takes the last who wait there.
void Service::AcceptWhoWaitsElsewhere() {
  while (earlier_listener_ && AcceptOne(earlier_listener_.get())) {
  }
  earlier_listener_.Reset();
}

void Service::StopAccepting() {
  loop_->Remove(listener_.get());
  accept_again_at_.reset();
  loop_->SetWork([] { return false; });
}

void Service::RemoveSocket() {
  if (!listener_ || leaving_ || listener_stays_) return;
  unlink(options_.socket.c_str());
  loop_->Remove(listener_.get());
  // Who was not accepted may have sent what lingers.
  closer_.CloseSession(std::move(listener_));
}

void Service::PauseAccepting() {
  loop_->Change(listener_.get(), 0);
  accept_again_at_ = loop_->now() + kAcceptPause;
}

void Service::TurnAway(int listener) {
  UniqueFd socket = spare_.Take(listener);
  if (!socket) return PauseAccepting();
  Refuse(std::move(socket),
         absl::ResourceExhaustedError(
             "sluiced has no file descriptors left: try again, or raise its "
             "LimitNOFILE"));
  spare_.Refill();
}

void Service::Accept() {
  for (int i = 0; i < kAcceptsPerWakeup; ++i) {
    if (closer_.sockets_waiting() >= Closer::kMostSockets) {
      return PauseAccepting();
    }
    if (!AcceptOne(listener_.get())) return;
  }
}

bool Service::AcceptOne(int listener) {
  UniqueFd socket(
      accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    if (SpareFd::IsShortage(errno)) TurnAway(listener);
    return false;
  }
  auto identity = IdentifyPeer(socket.get(), options_.peers);
  const absl::Status may =
      identity.ok() ? MayAttach(identity->peer.principal) : identity.status();
  if (!may.ok()) {
    Refuse(std::move(socket), may);
    return true;
  }
  const SessionId id(next_session_++);
  Watch(id, identity->peer.principal, std::move(socket),
        std::move(identity->pidfd));
  Execute(core_.Connect(id, identity->peer, loop_->now()));
  return true;
}

absl::Status Service::MayAttach(const Principal& principal) {
  if (closer_.waiting_of(principal) > Closer::kMostOfAUser) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} sent more than {} file descriptors that take long to close: "
        "wait until they are closed",
        Name(principal), Closer::kMostOfAUser));
  }
  return quotas_.Ask(principal, Resource::kSessions);
}

void Service::Refuse(UniqueFd socket, const absl::Status& why) {
  events_.WriteLimited(
      LogLimiter::kUnknown, loop_->now(), LogLevel::kWarning,
      fmt::format("a connection was refused: {}", std::string(why.message())));
  if (!socket) return;
  wire::Send(socket.get(), ErrorPacket(RequestId(), why)).IgnoreError();
  closer_.CloseSession(std::move(socket));
}

}  // namespace sluice::daemon
