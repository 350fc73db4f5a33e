#include "daemon/service/session_listener.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "daemon/service/convert.h"
#include "daemon/service/log/log.h"
#include "daemon/store/starter.h"
#include "proto/base/status.h"
#include "proto/wire.h"

namespace sluice::daemon {
namespace {

// Each accept takes about 0.1 ms of the loop.
constexpr int kAcceptsPerWakeup = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<SessionListener>> SessionListener::Open(
    Options options, UniqueFd handed, Handover& handover) {
  const bool reached = access(options.path.c_str(), F_OK) == 0;
  const bool stays = static_cast<bool>(handed);
  UniqueFd kept = handover.Take(Handover::kListener), earlier;
  if (stays && !reached) {
    WriteLog(
        LogLevel::kError,
        fmt::format("no client can connect, because {} was removed, and "
                    "sluiced did not make it: systemctl stop "
                    "sluiced.socket, then systemctl restart sluiced, which "
                    "makes both again",
                    options.path));
  }
  if (stays && kept && !IsSameSocket(kept, handed)) {
    // The earlier daemon had made its own socket, which is not needed any more.
    handover.Drop(Handover::kListener);
    earlier = std::move(kept);
  } else if (!stays && kept && reached) {
    handed = std::move(kept);
  } else if (!stays) {
    if (kept) handover.DropSocket(Handover::kListener, std::move(kept));
    SLUICE_ASSIGN_OR_RETURN(handed, wire::Listen(options.path, options.mode));
  }
  SLUICE_ASSIGN_OR_RETURN(auto listener,
                          Of(std::move(options), std::move(handed), stays));
  listener->earlier_ = std::move(earlier);
  return listener;
}

absl::StatusOr<std::unique_ptr<SessionListener>> SessionListener::Of(
    Options options, UniqueFd socket, bool stays) {
  if (fcntl(socket.get(), F_SETFL, O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "prepare the session socket");
  }
  return std::unique_ptr<SessionListener>(
      new SessionListener(std::move(options), std::move(socket), stays));
}

SessionListener::~SessionListener() { Stop(); }

// Accepts the last connections that wait at the earlier daemon's socket. No
// other clients connect there, because its path now belongs to the new socket.
void SessionListener::Start() {
  options_.loop->Add(socket_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
  while (earlier_ && AcceptOne(earlier_.get())) {
  }
  earlier_.Reset();
}

void SessionListener::Stop() {
  if (socket_) options_.loop->Remove(socket_.get());
  again_at_.reset();
}

void SessionListener::Remove() {
  if (!socket_ || stays_) return;
  unlink(options_.path.c_str());
  Stop();
  // Connections that were not accepted may contain descriptors that linger.
  options_.closer->CloseSession(std::move(socket_));
}

void SessionListener::Expire(absl::Time now) {
  if (deadline() > now) return;
  again_at_.reset();
  spare_.Refill();
  options_.loop->Change(socket_.get(), EPOLLIN);
}

void SessionListener::Pause() {
  options_.loop->Change(socket_.get(), 0);
  again_at_ = options_.loop->now() + kPause;
}

void SessionListener::Accept() {
  for (int i = 0; i < kAcceptsPerWakeup; ++i) {
    if (options_.closer->sockets_waiting() >= Closer::kMostSockets) {
      return Pause();
    }
    if (!AcceptOne(socket_.get())) return;
  }
}

bool SessionListener::AcceptOne(int listener) {
  UniqueFd socket(
      accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    if (SpareFd::IsShortage(errno)) TurnAway(listener);
    return false;
  }
  const absl::Status taken = options_.accepted(socket);
  if (!taken.ok()) Refuse(std::move(socket), taken);
  return true;
}

void SessionListener::TurnAway(int listener) {
  UniqueFd socket = spare_.Take(listener);
  if (!socket) return Pause();
  Refuse(std::move(socket),
         absl::ResourceExhaustedError(
             "sluiced has no file descriptors left: try again, or raise its "
             "LimitNOFILE"));
  spare_.Refill();
}

void SessionListener::Refuse(UniqueFd socket, const absl::Status& why) {
  if (options_.events != nullptr) {
    options_.events->WriteLimited(LogLimiter::kUnknown, options_.loop->now(),
                                  LogLevel::kWarning,
                                  fmt::format("a connection was refused: {}",
                                              std::string(why.message())));
  }
  wire::Send(socket.get(), ErrorPacket(RequestId(), why)).IgnoreError();
  options_.closer->CloseSession(std::move(socket));
}

}  // namespace sluice::daemon
